#include "server/api/service_error.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/api/field_checks.h"

namespace tessera::server {
namespace {

constexpr char kRetryAfterUrl[] = "tessera/retry-after-ms";
constexpr char kErrorCodeUrl[] = "tessera/error-code";

}  // namespace

absl::Status WithRetryAfter(absl::Status status, absl::Duration wait) {
  status.SetPayload(kRetryAfterUrl, absl::Cord(absl::StrCat(absl::ToInt64Milliseconds(wait))));
  return status;
}

std::optional<absl::Duration> RetryAfter(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryAfterUrl);
  int64_t milliseconds = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &milliseconds)) return std::nullopt;
  return absl::Milliseconds(milliseconds);
}

absl::Status WithErrorCode(absl::Status status, absl::string_view code) {
  status.SetPayload(kErrorCodeUrl, absl::Cord(code));
  return status;
}

std::string ErrorCode(const absl::Status& status) {
  const auto payload = status.GetPayload(kErrorCodeUrl);
  return payload.has_value() ? std::string(*payload) : "";
}

std::string ErrorCodeForCallers(const absl::Status& status) {
  using Code = absl::StatusCode;
  static constexpr std::pair<Code, const char*> kKinds[] = {{Code::kInvalidArgument, "invalid_value"},
                                                            {Code::kOutOfRange, "invalid_value"},
                                                            {Code::kUnauthenticated, "invalid_api_key"},
                                                            {Code::kPermissionDenied, "forbidden"},
                                                            {Code::kNotFound, "not_found"},
                                                            {Code::kAlreadyExists, "idempotency_key_reused"},
                                                            {Code::kFailedPrecondition, "conflict"},
                                                            {Code::kAborted, "conflict"},
                                                            {Code::kCancelled, "cancelled"},
                                                            {Code::kResourceExhausted, "rate_limit_exceeded"},
                                                            {Code::kUnimplemented, "not_implemented"},
                                                            {Code::kUnavailable, "unavailable"},
                                                            {Code::kDeadlineExceeded, "deadline_exceeded"}};
  if (status.code() == Code::kNotFound && ErrorField(status) == "model") return "model_not_found";
  if (std::string own = ErrorCode(status); !own.empty()) return own;
  const auto* kind = std::ranges::find(kKinds, status.code(), &std::pair<Code, const char*>::first);
  return kind != std::end(kKinds) ? kind->second : "internal_error";
}

absl::Status ErrorOfFailedJob(const absl::Status& error) {
  switch (error.code()) {
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
      return error;
    case absl::StatusCode::kInvalidArgument:
      return Named(error, FieldNames::kApi);
    default:
      return WithErrorCode(absl::InternalError(error.message()), "job_failed");
  }
}

}  // namespace tessera::server
