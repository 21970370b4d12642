#include "base/time/clock.h"

#include <chrono>

#include "base/time/steady_time.h"

namespace tessera::base {

// absl::Now would notice a jump only seconds later.
absl::Time SystemClock::Now() const { return absl::FromChrono(std::chrono::system_clock::now()); }

absl::Duration SystemClock::Elapsed() const { return SteadyNow(); }

}  // namespace tessera::base
