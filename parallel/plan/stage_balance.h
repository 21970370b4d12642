// Which blocks make a pipeline stage: contiguous runs whose costs differ as little as they can.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::parallel {

// What a transformer block does with image and text tokens.
enum class BlockKind : uint8_t {
  kImage,  // attention among image tokens, MLP
  kCross,  // the same and attention of image tokens to text
  kJoint,  // one attention over both; weights and MLP of its own for each
  kFused,  // one attention and one MLP over both, joined
};
constexpr auto NamesOf(BlockKind) { return std::array{"image", "cross", "joint", "fused"}; }

struct BlockCost {
  BlockKind kind = BlockKind::kImage;
  int64_t width = 0;       // of a token
  double mlp_ratio = 4;    // hidden features / width
  bool long_skip = false;  // reads another block's output through a matrix [2 · width, width]
};

// Floating-point operations of a block's matrix products and attention for one image: 2 for each weight and token,
// 4 · width for each pair of query and key.
double BlockFlops(const BlockCost& block, int64_t image_tokens, int64_t text_tokens);

// Bounds of `stages` runs of blocks, as Pipeline::bounds: no run is empty, and the dearest run is as cheap as possible;
// among such partitions the one whose first runs are shortest. InvalidArgument unless 1 ≤ stages ≤ blocks and costs are
// finite and not negative.
absl::StatusOr<std::vector<int>> BalanceStages(std::span<const double> costs, int stages);

}  // namespace tessera::parallel
