// Errors as HTTP tells them: {"error": {message, type, param, code}}, a status, and whether and when to try again.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/http/http_message.h"

namespace tessera::server {

struct HttpError {
  int status = 500;
  std::string message;
  std::string type;   // invalid_request_error, authentication_error, rate_limit_error, server_error, …
  std::string param;  // the field of the request; empty: none
  std::string code;   // a stable word for programs
  bool should_retry = false;
  std::optional<absl::Duration> retry_after;
};

HttpError HttpErrorOf(const absl::Status& status);

// Of a job that failed: trying the same again is the caller's decision, never a client library's.
HttpError HttpErrorOfFailedJob(const absl::Status& status);

// An error of HTTP itself, such as 404 for a route.
HttpError PlainHttpError(int status, std::string message);

// The JSON text of the object under "error".
std::string ErrorJson(const HttpError& error);

HttpResponse ErrorResponse(const HttpError& error);

}  // namespace tessera::server
