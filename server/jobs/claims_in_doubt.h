// ClaimsInDoubt holds a server's claims that a database may have made without its answer arriving. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "absl/time/time.h"
#include "base/time/steady_time.h"
#include "server/jobs/job_record.h"

namespace tessera::server {

class ClaimsInDoubt final {
 public:
  void Begin(const TaskAttempt& attempt) {
    const std::lock_guard lock(mutex_);
    claims_[attempt.task] = {.attempt = attempt.attempt, .since = base::SteadyNow()};
  }
  // The claim of this task was answered.
  void End(uint64_t task) {
    const std::lock_guard lock(mutex_);
    claims_.erase(task);
  }
  // The attempt was given back; a newer claim of the task stays.
  void End(const TaskAttempt& attempt) {
    const std::lock_guard lock(mutex_);
    if (IsOf(attempt)) claims_.erase(attempt.task);
  }

  bool Contains(const TaskAttempt& attempt) const {
    const std::lock_guard lock(mutex_);
    return IsOf(attempt);
  }
  std::vector<TaskAttempt> OlderThan(absl::Duration age) const {
    const std::lock_guard lock(mutex_);
    std::vector<TaskAttempt> old;
    for (const auto& [task, claim] : claims_) {
      if (base::SteadyNow() - claim.since > age) old.push_back({.task = task, .attempt = claim.attempt});
    }
    return old;
  }

 private:
  struct Claim {
    int32_t attempt = 0;
    absl::Duration since;  // on the steady clock
  };
  // Requires mutex_.
  bool IsOf(const TaskAttempt& attempt) const {
    const auto claim = claims_.find(attempt.task);
    return claim != claims_.end() && claim->second.attempt == attempt.attempt;
  }

  mutable std::mutex mutex_;
  std::map<uint64_t, Claim> claims_;  // guarded by mutex_, by task
};

}  // namespace tessera::server
