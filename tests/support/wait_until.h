// Waits for what no event tells of, with a deadline that fails the test.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tessera {

inline bool WaitUntil(const std::string& what, const std::function<bool()>& holds) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (!holds()) {
    if (absl::Now() > deadline) {
      ADD_FAILURE() << "not in time: " << what;
      return false;
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

}  // namespace tessera
