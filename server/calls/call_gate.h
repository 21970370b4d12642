// CallGate decides for all edges who may call, how often, how much a request may ask for and what it may contain.
// Thread-safe.
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
#include "server/api/caller.h"
#include "server/api/request_limits.h"
#include "server/calls/api_keys.h"
#include "server/calls/request_rules.h"

namespace tessera::server {

class CallGate {
 public:
  // Without `keys` every caller is the tenant "anonymous", without limits.
  explicit CallGate(std::unique_ptr<ApiKeys> keys, std::function<absl::Time()> now = absl::Now);

  // Take effect with the next call.
  void SetKeys(std::unique_ptr<ApiKeys> keys);
  void SetLimits(const RequestLimits& limits);
  RequestLimits limits() const;
  void SetRules(RequestRules rules);
  RequestRules rules() const;

  // Returns the caller of "Bearer SECRET", the value of an Authorization header; UNAUTHENTICATED.
  absl::StatusOr<Caller> Authenticate(const std::optional<std::string>& authorization);

  // Counts one submission. RESOURCE_EXHAUSTED with RetryAfter if the caller's requests_per_minute are used up: a token
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
  RequestRules rules_;
  std::map<std::string, Bucket> buckets_;  // by tenant
};

}  // namespace tessera::server
