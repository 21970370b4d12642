#include "server/http/error_response.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text/utf8.h"
#include "server/api/generation_request.h"
#include "server/api/service_error.h"
#include "server/fetch/input_check.h"

namespace tessera::server {
namespace {

struct Kind {
  absl::StatusCode of;
  int status;
  const char* type;
  bool should_retry;
};

Kind KindOf(absl::StatusCode code) {
  using Code = absl::StatusCode;
  static constexpr Kind kKinds[] = {{Code::kInvalidArgument, 400, "invalid_request_error", false},
                                    {Code::kOutOfRange, 400, "invalid_request_error", false},
                                    {Code::kUnauthenticated, 401, "authentication_error", false},
                                    {Code::kPermissionDenied, 403, "permission_error", false},
                                    {Code::kNotFound, 404, "invalid_request_error", false},
                                    {Code::kAlreadyExists, 409, "invalid_request_error", false},
                                    {Code::kFailedPrecondition, 409, "invalid_request_error", false},
                                    {Code::kAborted, 409, "invalid_request_error", false},
                                    {Code::kCancelled, 409, "invalid_request_error", false},
                                    {Code::kResourceExhausted, 429, "rate_limit_error", true},
                                    {Code::kUnimplemented, 501, "server_error", false},
                                    {Code::kUnavailable, 503, "server_error", true},
                                    {Code::kDeadlineExceeded, 504, "server_error", false}};
  const auto* kind = std::ranges::find(kKinds, code, &Kind::of);
  return kind != std::end(kKinds) ? *kind : Kind{Code::kInternal, 500, "server_error", true};
}

// A refusal by the operator's check of input has OpenAI's type, by which its clients recognise it.
const char* TypeOf(const std::string& code, const Kind& kind) {
  return code == kModerationCode ? "image_generation_user_error" : kind.type;
}

const char* PlainCode(int status) {
  static constexpr std::pair<int, const char*> kCodes[] = {{404, "not_found"},
                                                           {405, "method_not_allowed"},
                                                           {408, "request_timeout"},
                                                           {413, "body_too_large"},
                                                           {415, "unsupported_media_type"},
                                                           {421, "misdirected_request"},
                                                           {431, "header_too_large"},
                                                           {503, "uploads_full"}};
  const auto* code = std::ranges::find(kCodes, status, &std::pair<int, const char*>::first);
  return code != std::end(kCodes) ? code->second : "malformed_request";
}

}  // namespace

HttpError HttpErrorOf(const absl::Status& status) {
  const Kind kind = KindOf(status.code());
  const std::string code = ErrorCodeForCallers(status);
  HttpError error = {.status = kind.status,
                     .message = std::string(status.message()),
                     .type = TypeOf(code, kind),
                     .param = ErrorField(status),
                     .code = code,
                     .should_retry = kind.should_retry,
                     .retry_after = RetryAfter(status)};
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
  HttpError error = {.status = status,
                     .message = std::move(message),
                     .type = status == 403 ? "permission_error" : "invalid_request_error",
                     .param = "",
                     .code = PlainCode(status),
                     .should_retry = false};
  if (status != 503) return error;
  error.type = "server_error";
  error.should_retry = true;
  error.retry_after = absl::Seconds(1);
  return error;
}

std::string ErrorJson(const HttpError& error) {
  boost::json::object object;
  object["message"] = base::ReplaceInvalidUtf8(error.message);
  object["type"] = error.type;
  object["param"] =
      error.param.empty() ? boost::json::value() : boost::json::value(base::ReplaceInvalidUtf8(error.param));
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

}  // namespace tessera::server
