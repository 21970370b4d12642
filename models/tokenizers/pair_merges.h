// PairMerges holds which pairs of tokens a byte pair encoding joins, and in which order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace tessera::models {

class PairMerges {
 public:
  // Returns false if the pair was present; its rank is then replaced.
  bool Add(int32_t left, int32_t right, int32_t rank, int32_t joined_id);

  struct Piece {
    int32_t id;
    int32_t begin;  // position in the caller's units
  };
  // Joins the pair of the lowest rank, the leftmost first, until no pair is left. Time is n log n.
  void Join(std::vector<Piece>& pieces) const;

 private:
  struct Merge {
    int32_t rank;
    int32_t joined_id;
  };
  const Merge* Find(int32_t left, int32_t right) const;

  absl::flat_hash_map<uint64_t, Merge> merges_;  // by the ids of the left and the right token
};

}  // namespace tessera::models
