// Whether the storage takes what the job store must keep: one answer for jobs and results, whoever asks.
//
// A write that fails begins a trouble. Other writes that succeed meanwhile do not end it: a full disk still takes what
// finds room in the database's log. It ends when the store has tried both (JobStore::TryWrite), the result as large as
// the largest that failed. Damage stays until the process ends. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "server/api/storage_state.h"

namespace tessera::server {

struct StorageTrouble {
  StorageState state = StorageState::kOk;
  absl::Status failure;     // the first one of that state, with what the system said: for the log, not for callers
  absl::Duration duration;  // of the trouble until now; when it has ended, of all of it
};

class StorageHealth final {
 public:
  // Told of every change of the state, one at a time and in order, by whoever made it. Must not block.
  using OnChange = std::function<void(const StorageTrouble&)>;

  StorageHealth(const base::Clock& clock, OnChange on_change) : clock_(clock), on_change_(std::move(on_change)) {}

  void Fail(StorageState state, const absl::Status& failure, uint64_t result_bytes = 0);

  // A trial, begun when there were `failures`, has found that all can be written. Nothing where one more came
  // meanwhile.
  void Recover(int64_t failures);

  StorageTrouble trouble() const;
  int64_t failures() const;
  uint64_t needed_bytes() const;  // of a result that must find room before the trouble is over

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
