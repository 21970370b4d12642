// A connection between blocks that are not neighbours.
#pragma once

namespace tessera::parallel {

// The output of block `from` is kept for block `to` > `from`.
struct LongSkip {
  int from = 0;
  int to = 0;
  bool operator==(const LongSkip&) const = default;
};

}  // namespace tessera::parallel
