// How far a batch is, and how long it will take. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace tessera::client {

struct BatchProgress {
  int64_t total = 0;    // items of the shard; 0: not known
  int64_t skipped = 0;  // that had ended before
  int64_t ended = 0;    // since
  int64_t failed = 0;   // of both
  int64_t images = 0;   // made since

  // "17/50000 items, 0.93 images/s, 14h54m50s left, 2 failed", so long after the first item was begun.
  std::string Text(absl::Duration elapsed) const;
};

}  // namespace tessera::client
