// Divides blocks into pipeline stages: contiguous runs whose costs differ as little as possible.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "base/fields/fields.h"

namespace tessera::parallel {

// How a transformer block processes image and text tokens.
enum class BlockKind : uint8_t {
  kImage,    // attention among image tokens, MLP
  kCross,    // kImage, and attention of image tokens to text
  kJoint,    // one attention over both; separate weights and MLP for each
  kFused,    // one attention and one MLP over both, joined
  kUnified,  // one attention, then one MLP over both
};
constexpr auto NamesOf(BlockKind) { return std::array{"image", "cross", "joint", "fused", "unified"}; }

struct BlockCost {
  BlockKind kind = BlockKind::kImage;
  int64_t width = 0;              // of a token
  double mlp_ratio = 4;           // hidden features / width
  bool second_attention = false;  // a further attention over the image alone
  bool long_skip = false;         // reads another block's output through a matrix [2 · width, width]
};

// The floating-point operations of blocks for one row of a batch: 2 for each weight and token in matrix products,
// 4 · width for each pair of query and key in attention.
struct TokenFlops {
  double image = 0, text = 0;                                 // of a token in products
  double image_pair = 0, image_text_pair = 0, text_pair = 0;  // of two tokens in attention

  double Products(int64_t image_tokens, int64_t text_tokens) const;
  double Attention(int64_t image_tokens, int64_t text_tokens) const;
  double Total(int64_t image_tokens, int64_t text_tokens) const;
  TokenFlops& operator+=(const TokenFlops& other);
  bool operator==(const TokenFlops&) const = default;
};

constexpr auto FieldsOf(const TokenFlops*) {
  using base::Field;
  using F = TokenFlops;
  constexpr base::Number kFlops = {0, 1e30};
  return std::tuple(Field("image", &F::image, kFlops), Field("text", &F::text, kFlops),
                    Field("image_pair", &F::image_pair, kFlops), Field("image_text_pair", &F::image_text_pair, kFlops),
                    Field("text_pair", &F::text_pair, kFlops));
}

TokenFlops FlopsOf(const BlockCost& block);

// Returns the bounds of `stages` runs of blocks, as in Pipeline::bounds. No run is empty and the cost of the most
// expensive run is minimal; among such partitions the first runs are shortest. Returns InvalidArgument unless 1 ≤
// stages ≤ blocks and costs are finite and not negative.
absl::StatusOr<std::vector<int>> BalanceStages(std::span<const double> costs, int stages);

}  // namespace tessera::parallel
