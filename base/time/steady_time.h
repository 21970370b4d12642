// Time that never jumps, for waiting and measuring; calendar time (absl::Now) may jump.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace tessera::base {

// Returns the time since a fixed moment of this machine's run; the same in all its processes.
inline absl::Duration SteadyNow() { return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()); }

}  // namespace tessera::base
