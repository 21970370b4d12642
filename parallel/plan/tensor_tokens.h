// The sequence-sharded form of tensor parallelism (Korthikanti et al., "Reducing activation recomputation in large
// transformer models", 2022): outside of the matrix products that they share, each of the tensor ranks of one ring ×
// Ulysses share holds a part of its tokens. Pure arithmetic.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/plan/token_layout.h"
#include "parallel/plan/token_span.h"

namespace tessera::parallel {

// Decides which of the share's rows each tensor rank holds. Parts differ by at most one row and may be empty.
class TensorTokens {
 public:
  // `image` and `text` are the rows of the share, distributed over `ranks` tensor ranks.
  TensorTokens(int64_t image, int64_t text, int ranks);

  // Rows of each tensor rank.
  const std::vector<int64_t>& image() const { return image_; }
  const std::vector<int64_t>& text() const { return text_; }

  // The rank's span of the share's image rows.
  TokenSpan Image(int rank) const;

  // Returns the rows of each tensor rank, run by run, for rows that are joined in the order of `rows`.
  std::vector<std::vector<int64_t>> Runs(TokenRows rows) const;

 private:
  std::vector<int64_t> image_, text_;
};

}  // namespace tessera::parallel
