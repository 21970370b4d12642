// StoreTime provides the times of a job store. Thread-safe.
//
// Records have calendar time, which a wrong clock may have set: it may jump in either direction, and an earlier value
// may be in the future. Waits and deadlines of a process use a time that never jumps. Retention is measured in running
// time: how long servers have worked on the store, summed over all starts, by clocks that never jump. The store keeps
// it, so neither a wrong calendar at some start nor time without a server ends a retention.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "base/time/clock.h"

namespace tessera::server {

class StoreTime {
 public:
  // `calendar` is the current time; `running` is what the store has kept of earlier starts. The clock must outlive the
  // object.
  StoreTime(const base::Clock& clock, absl::Time calendar, absl::Duration running);

  // Returns the calendar time at the start plus elapsed time that never jumps.
  absl::Time Now() const;
  // Returns the calendar time as of the last Follow plus elapsed time that never jumps.
  absl::Time Calendar() const;
  absl::Duration Running() const;
  // Returns when the running time will reach `running` if a server works until then. Equal for each call, unless the
  // calendar was set meanwhile.
  absl::Time CalendarAt(absl::Duration running) const;

  // Sets the calendar time. A change of less than a second is ignored, so that records made while the clock is only
  // being adjusted stay in the order in which they were made.
  void Follow(absl::Time calendar);
  // Sets the current running time.
  void SetRunning(absl::Duration running);

 private:
  absl::Duration Elapsed() const { return clock_.Elapsed() - begun_; }

  const base::Clock& clock_;
  const absl::Time opened_;
  const absl::Duration begun_;
  // Microseconds at the moment when Elapsed was 0.
  std::atomic<int64_t> calendar_, running_;
};

}  // namespace tessera::server
