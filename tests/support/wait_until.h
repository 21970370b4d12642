// The one wait of tests for what nobody reports. It is asked again and again, and the test fails when the time is over.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tessera {

// Until `holds`; false and a failed test if that is not so in time.
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
