// FakeClock is a clock that only the test advances, and whose wall clock can jump.
#pragma once

#include "absl/time/time.h"
#include "base/time/clock.h"

namespace tessera {

// Not thread-safe while it is changed.
class FakeClock final : public base::Clock {
 public:
  absl::Time Now() const override { return now_; }
  absl::Duration Elapsed() const override { return elapsed_; }
  void Advance(absl::Duration time) {
    now_ += time;
    elapsed_ += time;
  }
  void Jump(absl::Duration time) { now_ += time; }

 private:
  absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);
  absl::Duration elapsed_ = absl::Seconds(5);
};

}  // namespace tessera
