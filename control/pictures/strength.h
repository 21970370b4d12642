// FirstStepOfStrength returns how many steps `strength` removes from a schedule that starts from a picture.
#pragma once

#include <algorithm>

namespace tessera::control {

// The index of the first of `steps` steps that is run; steps first .. steps - 1 are run. At strength 1 it is 0, at
// strength 0 it is `steps`, so that no step is run. The product is computed in IEEE doubles as the reference does:
// 100 * 0.55 is a little more than 55, 100 * 0.57 a little less than 57. `steps` is at least 0 and `strength` is in
// [0, 1].
inline int FirstStepOfStrength(int steps, double strength) {
  const double run = std::min(steps * strength, static_cast<double>(steps));
  return static_cast<int>(std::max(steps - run, 0.0));
}

}  // namespace tessera::control
