#include "base/clock.h"

#include "absl/time/clock.h"
#include "base/steady_time.h"

namespace tessera::base {

absl::Time SystemClock::Now() const { return absl::Now(); }

absl::Duration SystemClock::Elapsed() const { return SteadyNow(); }

}  // namespace tessera::base
