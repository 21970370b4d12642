// HttpError is an error in HTTP form: {"error": {message, type, param, code}}, a status, and whether and when to retry.
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
  std::string code;   // a stable error code
  bool should_retry = false;
  std::optional<absl::Duration> retry_after;
};

HttpError HttpErrorOf(const absl::Status& status);

// Returns the error of a job that failed. Only the caller should decide to retry it, not a client library.
HttpError HttpErrorOfFailedJob(const absl::Status& status);

// Returns an error of HTTP itself, such as 404 for a route.
HttpError PlainHttpError(int status, std::string message);

// Returns the JSON text of the object under "error".
std::string ErrorJson(const HttpError& error);

HttpResponse ErrorResponse(const HttpError& error);

}  // namespace tessera::server
