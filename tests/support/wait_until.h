// WaitUntil is the only polling wait of the tests, for conditions without a notification. It polls until the condition
// holds and fails the test after a timeout.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/time/steady_time.h"

namespace tessera {

// Waits until `holds` returns true. Fails the test and returns false after the timeout.
inline bool WaitUntil(const std::string& what, const std::function<bool()>& holds,
                      absl::Duration timeout = absl::Minutes(1)) {
  const absl::Duration deadline = base::SteadyNow() + timeout;
  while (!holds()) {
    if (base::SteadyNow() > deadline) {
      ADD_FAILURE() << "not in time: " << what;
      return false;
    }
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

}  // namespace tessera
