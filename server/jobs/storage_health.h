// StorageHealth records whether the storage takes the job store's writes: one state for jobs and results and for all
// callers.
//
// A failed write starts a trouble. Other writes that succeed meanwhile do not end it: a full disk still takes what fits
// into the free space of the database's log. It ends when the store has probed both (JobStore::TryWrite), with a result
// as large as the largest that failed. Damage lasts until the process ends. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/time/clock.h"
#include "server/api/storage_state.h"

namespace tessera::server {

struct StorageTrouble {
  StorageState state = StorageState::kOk;
  absl::Status failure;     // first failure of that state with the system's message: for the log, not for callers
  absl::Duration duration;  // of the trouble so far; after its end, its total
};

class StorageHealth final {
 public:
  // Called on every change of the state, one at a time and in order, by the thread that caused it. Must not block.
  using OnChange = std::function<void(const StorageTrouble&)>;

  StorageHealth(const base::Clock& clock, OnChange on_change) : clock_(clock), on_change_(std::move(on_change)) {}

  void Fail(StorageState state, const absl::Status& failure, uint64_t result_bytes = 0);

  // Reports that a trial, begun when there were `failures`, could write everything. Does nothing if another failure
  // came meanwhile.
  void Recover(int64_t failures);

  StorageTrouble trouble() const;
  int64_t failures() const;
  uint64_t needed_bytes() const;  // a result of this size must fit before the trouble ends

 private:
  StorageTrouble TroubleNow() const;

  const base::Clock& clock_;
  const OnChange on_change_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  StorageState state_ = StorageState::kOk;
  absl::Status failure_;
  absl::Duration begun_;
  uint64_t needed_bytes_ = 0;
  int64_t failures_ = 0;
};

}  // namespace tessera::server
