#include "server/http/error_response.h"

#include <boost/json.hpp>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "server/api/generation_request.h"
#include "server/api/service_error.h"

namespace tessera {
namespace {

struct Kind {
  int status;
  const char* type;
  const char* code;
  bool should_retry;
};

Kind KindOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return {400, "invalid_request_error", "invalid_value", false};
    case absl::StatusCode::kUnauthenticated:
      return {401, "authentication_error", "invalid_api_key", false};
    case absl::StatusCode::kPermissionDenied:
      return {403, "permission_error", "forbidden", false};
    case absl::StatusCode::kNotFound:
      return {404, "invalid_request_error", "not_found", false};
    case absl::StatusCode::kAlreadyExists:
      return {409, "invalid_request_error", "idempotency_key_reused", false};
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:
      return {409, "invalid_request_error", "conflict", false};
    case absl::StatusCode::kCancelled:
      return {409, "invalid_request_error", "cancelled", false};
    case absl::StatusCode::kResourceExhausted:
      return {429, "rate_limit_error", "rate_limit_exceeded", true};
    case absl::StatusCode::kUnimplemented:
      return {501, "server_error", "not_implemented", false};
    case absl::StatusCode::kUnavailable:
      return {503, "server_error", "unavailable", true};
    case absl::StatusCode::kDeadlineExceeded:
      return {504, "server_error", "deadline_exceeded", false};
    default:
      return {500, "server_error", "internal_error", true};
  }
}

const char* PlainCode(int status) {
  switch (status) {
    case 404:
      return "not_found";
    case 405:
      return "method_not_allowed";
    case 408:
      return "request_timeout";
    case 413:
      return "body_too_large";
    case 415:
      return "unsupported_media_type";
    case 421:
      return "misdirected_request";
    case 431:
      return "header_too_large";
    default:
      return "malformed_request";
  }
}

}  // namespace

HttpError HttpErrorOf(const absl::Status& status) {
  const Kind kind = KindOf(status.code());
  HttpError error = {.status = kind.status,
                     .message = std::string(status.message()),
                     .type = kind.type,
                     .param = ErrorField(status),
                     .code = kind.code,
                     .should_retry = kind.should_retry,
                     .retry_after = RetryAfter(status)};
  if (const std::string code = ErrorCode(status); !code.empty()) error.code = code;
  if (error.status == 404 && error.param == "model") error.code = "model_not_found";
  if (!error.retry_after && error.should_retry && error.status != 500) error.retry_after = absl::Seconds(1);
  return error;
}

HttpError HttpErrorOfFailedJob(const absl::Status& status) {
  HttpError error = HttpErrorOf(ErrorOfFailedJob(status));
  error.should_retry = false;
  error.retry_after.reset();
  return error;
}

HttpError PlainHttpError(int status, std::string message) {
  return {.status = status,
          .message = std::move(message),
          .type = status == 403 ? "permission_error" : "invalid_request_error",
          .param = "",
          .code = PlainCode(status),
          .should_retry = false};
}

std::string ErrorJson(const HttpError& error) {
  boost::json::object object;
  object["message"] = ReplaceInvalidUtf8(error.message);
  object["type"] = error.type;
  object["param"] = error.param.empty() ? boost::json::value() : boost::json::value(ReplaceInvalidUtf8(error.param));
  object["code"] = error.code;
  return boost::json::serialize(object);
}

HttpResponse ErrorResponse(const HttpError& error) {
  HttpResponse response;
  response.status = error.status;
  response.headers.push_back({"Content-Type", "application/json"});
  response.headers.push_back({"x-should-retry", error.should_retry ? "true" : "false"});
  if (error.retry_after.has_value()) {
    const double seconds = std::ceil(std::max(1.0, absl::ToDoubleSeconds(*error.retry_after)));
    response.headers.push_back({"Retry-After", absl::StrCat(static_cast<int64_t>(std::min(seconds, 86400.0)))});
  }
  if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  response.body = absl::StrCat("{\"error\":", ErrorJson(error), "}");
  return response;
}

}  // namespace tessera
