// What an error of the service says beyond its code and message: which field of the request, and when to try again.
// Kept as payloads of the status, so that every edge can spell it in its own way.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tessera::server {

// How long to wait before the same request has a chance.
absl::Status WithRetryAfter(absl::Status status, absl::Duration wait);
std::optional<absl::Duration> RetryAfter(const absl::Status& status);

// A stable word for programs, such as "queue_full" or "rate_limit_exceeded".
absl::Status WithErrorCode(absl::Status status, absl::string_view code);
std::string ErrorCode(const absl::Status& status);  // empty: none

// The word that callers get for any error: its own, or that of its kind, such as "invalid_value". HTTP sends it as
// `code`, gRPC as tessera-error-code.
std::string ErrorCodeForCallers(const absl::Status& status);

// What the caller of a failed job is told. What the caller itself decided keeps its code: the deadline, the end by
// cancelling, and what only the model could refuse of the request (INVALID_ARGUMENT, the field in the API's names). All
// else is INTERNAL with the code "job_failed".
absl::Status ErrorOfFailedJob(const absl::Status& error);

}  // namespace tessera::server
