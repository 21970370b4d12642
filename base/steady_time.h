// Time that never jumps, for whatever waits or measures: the calendar's time (absl::Now) may.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace tessera::base {

// Since a fixed moment of this machine's run; the same in all its processes.
inline absl::Duration SteadyNow() { return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()); }

}  // namespace tessera::base
