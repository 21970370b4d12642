#include "server/jobs/clock.h"

#include "absl/time/clock.h"
#include "runtime/steady_time.h"

namespace tessera {

absl::Time SystemClock::Now() const { return absl::Now(); }

absl::Duration SystemClock::Elapsed() const { return SteadyNow(); }

}  // namespace tessera
