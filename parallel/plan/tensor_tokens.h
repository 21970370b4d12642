// The sequence-sharded form of tensor parallelism (Korthikanti et al., "Reducing activation recomputation in large
// transformer models", 2022): outside of the matrix products that they share, the tensor ranks of one ring × Ulysses
// share hold a part of its tokens each. Pure arithmetic.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/plan/token_layout.h"
#include "parallel/plan/token_span.h"

namespace tessera::parallel {

// Which of the share's rows each tensor rank holds. Parts differ by one row at most, and zero is valid.
class TensorTokens {
 public:
  // `image` and `text` rows of the share, over `ranks` tensor ranks.
  TensorTokens(int64_t image, int64_t text, int ranks);

  // Rows of each tensor rank.
  const std::vector<int64_t>& image() const { return image_; }
  const std::vector<int64_t>& text() const { return text_; }

  // Within the share's image rows.
  TokenSpan Image(int rank) const;

  // Of rows that are joined in the order of `rows`, run by run: rows of each tensor rank.
  std::vector<std::vector<int64_t>> Runs(TokenRows rows) const;

 private:
  std::vector<int64_t> image_, text_;
};

}  // namespace tessera::parallel
