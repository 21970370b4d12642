// CallRecord describes one answered call of the API, for the log and for metrics. It contains no prompt and no image.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"

namespace tessera::server {

struct CallRecord {
  std::string protocol = "http";  // or "grpc", or "admin" for HTTP on the admin listener
  std::string request_id;
  std::string method;      // HTTP method
  std::string route;       // its pattern, "/v1/jobs/{id}", or the gRPC method; empty: none
  int status = 0;          // HTTP status, 0: the client disconnected first; or the gRPC status code
  std::string error_code;  // stable error code, if there was an error
  std::string tenant;
  std::string peer;
  std::string job;
  std::string trace_parent;  // context of the call's span if spans are made; otherwise the caller's
  std::string parent_span;   // the caller's span; empty: unknown, or no spans are made
  absl::Duration duration;
  uint64_t request_bytes = 0;
  uint64_t response_bytes = 0;  // size of the body or of the messages
};

using CallRecorder = std::function<void(const CallRecord&)>;
// Is called when a call begins, with its ids, and may change its trace context.
using CallBeginner = std::function<void(CallRecord&)>;

}  // namespace tessera::server
