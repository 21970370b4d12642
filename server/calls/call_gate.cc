#include "server/calls/call_gate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/api/service_error.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxSecretBytes = 512;

}  // namespace

CallGate::CallGate(std::unique_ptr<ApiKeys> keys, std::function<absl::Time()> now)
    : now_(std::move(now)), keys_(std::move(keys)) {}

void CallGate::SetKeys(std::unique_ptr<ApiKeys> keys) {
  const std::lock_guard lock(mutex_);
  keys_ = std::move(keys);
}

void CallGate::SetLimits(const RequestLimits& limits) {
  const std::lock_guard lock(mutex_);
  limits_ = limits;
}

RequestLimits CallGate::limits() const {
  const std::lock_guard lock(mutex_);
  return limits_;
}

void CallGate::SetRules(RequestRules rules) {
  const std::lock_guard lock(mutex_);
  std::swap(rules_, rules);  // the old ones end without the lock
}

RequestRules CallGate::rules() const {
  const std::lock_guard lock(mutex_);
  return rules_;
}

absl::StatusOr<Caller> CallGate::Authenticate(const std::optional<std::string>& authorization) {
  Caller caller;
  caller.tenant = "anonymous";
  std::shared_ptr<ApiKeys> keys;
  {
    const std::lock_guard lock(mutex_);
    keys = keys_;
  }
  if (keys == nullptr) return caller;
  if (!authorization.has_value()) {
    return WithErrorCode(
        absl::UnauthenticatedError("an API key is needed: send the header \"Authorization: Bearer KEY\""),
        "missing_api_key");
  }
  constexpr absl::string_view kScheme = "Bearer ";
  absl::string_view secret = *authorization;
  if (absl::StartsWithIgnoreCase(secret, kScheme)) {
    secret = absl::StripAsciiWhitespace(secret.substr(kScheme.size()));
    if (secret.size() <= kMaxSecretBytes) {
      if (const std::optional<ApiKey> key = keys->Find(secret)) {
        caller.tenant = key->name;
        caller.limits = key->limits;
        return caller;
      }
    }
  }
  return absl::UnauthenticatedError("the API key is not known: send a valid one as \"Authorization: Bearer KEY\"");
}

absl::Status CallGate::CountSubmission(const Caller& caller) {
  const auto capacity = static_cast<double>(caller.limits.requests_per_minute);
  if (capacity <= 0) return absl::OkStatus();
  const absl::Time now = now_();
  const std::lock_guard lock(mutex_);
  Bucket& bucket = buckets_[caller.tenant];
  const double filled = bucket.filled == absl::InfinitePast()
                            ? capacity
                            : bucket.tokens + std::max(0.0, absl::ToDoubleMinutes(now - bucket.filled)) * capacity;
  bucket.tokens = std::min(capacity, filled);
  bucket.filled = now;
  if (bucket.tokens < 1) {
    return WithRetryAfter(
        WithErrorCode(absl::ResourceExhaustedError(absl::StrCat("this key may make ", caller.limits.requests_per_minute,
                                                                " requests a minute, and has reached that limit")),
                      "rate_limit_exceeded"),
        absl::Minutes((1 - bucket.tokens) / capacity));
  }
  bucket.tokens -= 1;
  return absl::OkStatus();
}

}  // namespace tessera::server
