// The times of a job store. Thread-safe.
//
// Records have the calendar's time, which a wrong clock may have set: it may jump in either direction, and what it said
// once may lie in the future. Waits and deadlines of a process are on a time that never jumps. Retention is measured by
// running time: how long servers have worked on the store, all starts together, by clocks that never jump. The store
// keeps it, so whatever the calendar says at one start or another ends no retention, and neither does the time in which
// no server worked.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "base/clock.h"

namespace tessera::server {

class StoreTime {
 public:
  // `calendar` is the time now; `running`, what the store has kept of earlier starts. The clock must outlive this.
  StoreTime(const base::Clock& clock, absl::Time calendar, absl::Duration running);

  // The calendar's time at the start plus time that never jumps.
  absl::Time Now() const;
  // The calendar's time as of the last Follow plus time that never jumps.
  absl::Time Calendar() const;
  absl::Duration Running() const;
  // When the running time will be `running`, if a server works all the while. The same at each call unless the calendar
  // was set in between.
  absl::Time CalendarAt(absl::Duration running) const;

  // The calendar says so now. Where that is less than a second from what it was taken to be, nothing changes: records
  // of a clock that is only disciplined are in the order in which they were made.
  void Follow(absl::Time calendar);
  // The running time is so much now.
  void SetRunning(absl::Duration running);

 private:
  absl::Duration Elapsed() const { return clock_.Elapsed() - begun_; }

  const base::Clock& clock_;
  const absl::Time opened_;
  const absl::Duration begun_;
  // In microseconds, of the moment at which Elapsed was 0.
  std::atomic<int64_t> calendar_, running_;
};

}  // namespace tessera::server
