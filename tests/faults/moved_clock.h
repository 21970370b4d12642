// MovedClock shifts the clocks of a TestServer and its workers with jumping_clock.cc.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <string>

#include "absl/time/time.h"
#include "tests/faults/test_server.h"

namespace tessera {

class MovedClock {
 public:
  // Create it before the server starts.
  explicit MovedClock(TestServer& server) : file_(server.folder() + "/clock") {
    server.Write("clock", std::string(2 * sizeof(int64_t), '\0'));
    server.options().environment.insert({{"LD_PRELOAD", JUMPING_CLOCK_LIBRARY}, {"JUMPING_CLOCK", file_}});
  }

  // Sets the wall clock alone, `far` from the machine's clock.
  void JumpTo(absl::Duration far) { Set(far, absl::ZeroDuration()); }

  // Advances the wall clock and the monotonic clock together.
  void Pass(absl::Duration time) {
    passed_ += time;
    Set(passed_, passed_);
  }

 private:
  // Writes in place because other processes have mapped the file.
  void Set(absl::Duration calendar, absl::Duration passed) {
    const std::array<int64_t, 2> seconds = {absl::ToInt64Seconds(calendar), absl::ToInt64Seconds(passed)};
    std::fstream file(file_, std::ios::binary | std::ios::in | std::ios::out);
    file.write(reinterpret_cast<const char*>(seconds.data()), sizeof(seconds));
    EXPECT_TRUE(file.flush());
  }

  const std::string file_;
  absl::Duration passed_;
};

}  // namespace tessera
