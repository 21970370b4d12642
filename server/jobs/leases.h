// Until when each running task is believed to advance. In memory, on time that never jumps. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/jobs/job_record.h"

namespace tessera {

class Leases final {
 public:
  explicit Leases(absl::Duration length) : length_(length) {}

  void Start(const TaskAttempt& attempt, absl::Duration now);
  void Renew(absl::Span<const TaskAttempt> attempts, absl::Duration now);  // of those that are held
  void End(uint64_t task);
  std::vector<TaskAttempt> Expired(absl::Duration now) const;  // by task

 private:
  struct Lease {
    int32_t attempt;
    absl::Duration until;
  };

  const absl::Duration length_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Lease> leases_;  // guarded by mutex_
};

}  // namespace tessera
