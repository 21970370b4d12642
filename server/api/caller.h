// Caller is who calls the service, and what its key allows.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::server {

// Limits of one API key; 0: no limit. The job queue enforces the two limits on queued work; HTTP and gRPC enforce the
// rate.
struct KeyLimits {
  int64_t requests_per_minute = 0;
  int64_t queued_jobs = 0;           // maximum number of accepted jobs that have not ended
  double queued_device_seconds = 0;  // maximum predicted time of the same jobs

  bool operator==(const KeyLimits&) const = default;
};

// The caller of the service. Everything that it creates belongs exclusively to its tenant.
struct Caller {
  std::string tenant;  // the name of the API key; "anonymous" without keys
  KeyLimits limits;
  std::string request_id;    // for logs
  std::string trace_parent;  // W3C traceparent of the call; empty if none
};

// A caller's key for one request. Within a tenant, a second submission with the same key returns the first one if the
// digest is also equal, and ALREADY_EXISTS if it is not.
struct IdempotencyKey {
  std::string key;
  std::string digest;  // digest of the request as sent, before defaults were filled in
};

}  // namespace tessera::server
