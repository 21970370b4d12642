// How many token rows each rank of a sequence-parallel group holds. The group is ring x ulysses, Ulysses inner; a rank
// may hold none.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/forward_context.h"

namespace tessera {

struct SequenceRows {
  int ring = 1, ulysses = 1;
  std::vector<int64_t> image,
      text;  // by rank of the group: ring · ulysses entries each; text all 0 if it is not spread

  int64_t Of(TokenStreams streams, int rank) const {
    return image[static_cast<size_t>(rank)] + (streams == TokenStreams::kJoint ? text[static_cast<size_t>(rank)] : 0);
  }
  // Rows of the ranks that share one ring coordinate, by Ulysses coordinate.
  std::vector<int64_t> OfUlysses(TokenStreams streams, int ring_rank) const {
    std::vector<int64_t> rows;
    for (int u = 0; u < ulysses; ++u) rows.push_back(Of(streams, ring_rank * ulysses + u));
    return rows;
  }
  // Rows that a ring rank holds once its Ulysses group has exchanged them, by ring coordinate.
  std::vector<int64_t> OfRing(TokenStreams streams) const {
    std::vector<int64_t> rows;
    for (int r = 0; r < ring; ++r) {
      int64_t sum = 0;
      for (const int64_t count : OfUlysses(streams, r)) sum += count;
      rows.push_back(sum);
    }
    return rows;
  }
};

}  // namespace tessera
