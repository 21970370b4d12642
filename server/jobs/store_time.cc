#include "server/jobs/store_time.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kJump = absl::Seconds(1);

}  // namespace

StoreTime::StoreTime(const base::Clock& clock, absl::Time calendar, absl::Duration running)
    : clock_(clock),
      opened_(calendar),
      begun_(clock.Elapsed()),
      calendar_(absl::ToUnixMicros(calendar)),
      running_(absl::ToInt64Microseconds(running)) {}

absl::Time StoreTime::Now() const { return opened_ + Elapsed(); }

absl::Time StoreTime::Calendar() const { return absl::FromUnixMicros(calendar_) + Elapsed(); }

absl::Duration StoreTime::Running() const { return absl::Microseconds(running_.load()) + Elapsed(); }

absl::Time StoreTime::CalendarAt(absl::Duration running) const {
  return absl::FromUnixMicros(calendar_) + (running - absl::Microseconds(running_.load()));
}

void StoreTime::Follow(absl::Time calendar) {
  if (absl::AbsDuration(calendar - Calendar()) < kJump) return;
  calendar_ = absl::ToUnixMicros(calendar - Elapsed());
}

void StoreTime::SetRunning(absl::Duration running) { running_ = absl::ToInt64Microseconds(running - Elapsed()); }

}  // namespace tessera::server
