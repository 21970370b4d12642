// BatchProgress formats the progress of a batch and its remaining time. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace tessera::client {

struct BatchProgress {
  int64_t total = 0;    // items of the shard; 0: unknown
  int64_t skipped = 0;  // ended in an earlier process
  int64_t ended = 0;    // ended in this process
  int64_t failed = 0;   // failures among both
  int64_t images = 0;   // made in this process

  // Returns "17/50000 items, 0.93 images/s, 14h54m50s left, 2 failed", `elapsed` after the first item began.
  std::string Text(absl::Duration elapsed) const;
};

}  // namespace tessera::client
