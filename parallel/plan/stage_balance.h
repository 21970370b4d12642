// Divides blocks into pipeline stages: contiguous runs whose costs differ as little as possible.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::parallel {

// How a transformer block processes image and text tokens.
enum class BlockKind : uint8_t {
  kImage,  // attention among image tokens, MLP
  kCross,  // kImage, and attention of image tokens to text
  kJoint,  // one attention over both; separate weights and MLP for each
  kFused,  // one attention and one MLP over both, joined
};
constexpr auto NamesOf(BlockKind) { return std::array{"image", "cross", "joint", "fused"}; }

struct BlockCost {
  BlockKind kind = BlockKind::kImage;
  int64_t width = 0;       // of a token
  double mlp_ratio = 4;    // hidden features / width
  bool long_skip = false;  // reads another block's output through a matrix [2 · width, width]
};

// Returns the floating-point operations of a block's matrix products and attention for one image: 2 for each weight and
// token, 4 · width for each pair of query and key.
double BlockFlops(const BlockCost& block, int64_t image_tokens, int64_t text_tokens);

// Returns the bounds of `stages` runs of blocks, as in Pipeline::bounds. No run is empty and the cost of the most
// expensive run is minimal; among such partitions the first runs are shortest. Returns InvalidArgument unless 1 ≤
// stages ≤ blocks and costs are finite and not negative.
absl::StatusOr<std::vector<int>> BalanceStages(std::span<const double> costs, int stages);

}  // namespace tessera::parallel
