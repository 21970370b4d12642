// Who may call, how often, and how much a request may ask for: the same for every edge. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/api/image_request.h"
#include "server/api/job.h"
#include "server/calls/api_keys.h"

namespace tessera::server {

class CallGate {
 public:
  // Without `keys` everybody is the tenant "anonymous", without limits.
  explicit CallGate(std::unique_ptr<ApiKeys> keys, std::function<absl::Time()> now = absl::Now);

  // From the next call on.
  void SetKeys(std::unique_ptr<ApiKeys> keys);
  void SetLimits(const RequestLimits& limits);
  RequestLimits limits() const;

  // The caller that "Bearer SECRET", the value of an Authorization header, stands for; UNAUTHENTICATED.
  absl::StatusOr<Caller> Authenticate(const std::optional<std::string>& authorization);

  // Counts one submission. RESOURCE_EXHAUSTED with RetryAfter where the caller's requests_per_minute are used up: a
  // bucket of that size, which fills evenly.
  absl::Status CountSubmission(const Caller& caller);

 private:
  struct Bucket {
    double tokens = 0;
    absl::Time filled = absl::InfinitePast();
  };

  const std::function<absl::Time()> now_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::shared_ptr<ApiKeys> keys_;
  RequestLimits limits_;
  std::map<std::string, Bucket> buckets_;  // by tenant
};

}  // namespace tessera::server
