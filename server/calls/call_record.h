// What is known of one call of the API once it is answered: for the log and for metrics. No prompt, no image.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"

namespace tessera::server {

struct CallRecord {
  std::string protocol = "http";  // "grpc", or "admin" for HTTP on the admin listener
  std::string request_id;
  std::string method;      // of HTTP
  std::string route;       // its pattern, "/v1/jobs/{id}", or the method of gRPC; empty: none
  int status = 0;          // of HTTP, 0: the client went away first; the status code of gRPC
  std::string error_code;  // a stable word, where there was an error
  std::string tenant;
  std::string peer;
  std::string job;
  std::string trace_parent;
  absl::Duration duration;
  uint64_t request_bytes = 0;
  uint64_t response_bytes = 0;  // of the body, or of the messages
};

using CallRecorder = std::function<void(const CallRecord&)>;

}  // namespace tessera::server
