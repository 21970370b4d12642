// A run of tokens.
#pragma once

#include <cstdint>

namespace tessera::parallel {

// A run of an image's tokens or of its text's: all of them for one rank, its share under sequence parallelism, or a
// patch under PipeFusion.
struct TokenSpan {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
  bool operator==(const TokenSpan&) const = default;
};

}  // namespace tessera::parallel
