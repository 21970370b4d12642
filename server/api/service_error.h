// Attaches details beyond code and message to errors of the service: an error code for programs and the time to wait
// before a retry. They are stored as payloads of the status, so that HTTP and gRPC can each represent them.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tessera::server {

// How long to wait before the same request may succeed.
absl::Status WithRetryAfter(absl::Status status, absl::Duration wait);
std::optional<absl::Duration> RetryAfter(const absl::Status& status);

// A stable code for programs, such as "queue_full" or "rate_limit_exceeded".
absl::Status WithErrorCode(absl::Status status, absl::string_view code);
std::string ErrorCode(const absl::Status& status);  // empty if none

// The error code shown to callers: the one attached to the error, or that of its kind, such as "invalid_value". HTTP
// sends it as `code`, gRPC as tessera-error-code.
std::string ErrorCodeForCallers(const absl::Status& status);

// Returns the error that the caller of a failed job sees. Errors that the caller caused keep their code: the deadline,
// cancellation, and a request that only the model could refuse (INVALID_ARGUMENT, with the field's API name). Every
// other error becomes INTERNAL with the error code "job_failed".
absl::Status ErrorOfFailedJob(const absl::Status& error);

}  // namespace tessera::server
