#include "server/jobs/leases.h"

#include <algorithm>

namespace tessera {

void Leases::Start(const TaskAttempt& attempt, absl::Duration now) {
  const std::lock_guard lock(mutex_);
  leases_[attempt.task] = {.attempt = attempt.attempt, .until = now + length_};
}

void Leases::Renew(absl::Span<const TaskAttempt> attempts, absl::Duration now) {
  const std::lock_guard lock(mutex_);
  for (const TaskAttempt& attempt : attempts) {
    const auto lease = leases_.find(attempt.task);
    if (lease != leases_.end() && lease->second.attempt == attempt.attempt) lease->second.until = now + length_;
  }
}

void Leases::End(uint64_t task) {
  const std::lock_guard lock(mutex_);
  leases_.erase(task);
}

std::vector<TaskAttempt> Leases::Expired(absl::Duration now) const {
  std::vector<TaskAttempt> expired;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [task, lease] : leases_) {
      if (lease.until <= now) expired.push_back({.task = task, .attempt = lease.attempt});
    }
  }
  std::sort(expired.begin(), expired.end(), [](const TaskAttempt& a, const TaskAttempt& b) { return a.task < b.task; });
  return expired;
}

}  // namespace tessera
