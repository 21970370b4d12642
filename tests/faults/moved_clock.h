// The clocks of a TestServer and its workers, by jumping_clock.cc.
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
  // Before the server starts.
  explicit MovedClock(TestServer& server) : file_(server.folder() + "/clock") {
    server.Write("clock", std::string(2 * sizeof(int64_t), '\0'));
    server.options().environment.insert({{"LD_PRELOAD", JUMPING_CLOCK_LIBRARY}, {"JUMPING_CLOCK", file_}});
  }

  // The calendar alone, so far from the machine's own.
  void JumpTo(absl::Duration far) { Set(far, absl::ZeroDuration()); }

  // The calendar and the time that never jumps, which agree.
  void Pass(absl::Duration time) {
    passed_ += time;
    Set(passed_, passed_);
  }

 private:
  // The file is mapped by others and must stay as long as it is.
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
