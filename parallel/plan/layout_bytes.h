// Computes how many bytes each rank of a layout sends to other ranks in one forward pass, in closed form, from the
// shapes of a model and the token rows that ranks own. docs/parallelism.md derives the formulas; the communicators
// count the same bytes (CommCount), and a test compares the two. Pure; does not use LibTorch.
//
// The whole image passes through the pipeline's stages at once; patches are not covered.
#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/fields/fields.h"
#include "parallel/plan/long_skip.h"
#include "parallel/plan/mesh.h"
#include "parallel/plan/stage_balance.h"

namespace tessera::parallel {

// What a block adds to the exchanges of its kind.
struct BlockExchange {
  BlockKind kind = BlockKind::kImage;
  bool second_attention = false;  // a further attention over the image alone
  bool text_ends = false;         // kJoint: the text is not read after the block, so it has only keys and values
};

// The properties of a transformer that decide how much its ranks exchange.
struct ExchangeModel {
  int64_t width = 0;                // of a token between blocks, and of all heads together
  int64_t output_features = 0;      // of a token after the head
  int64_t prediction_features = 0;  // the output features that guidance and sampler read
  std::vector<BlockExchange> blocks;
  std::vector<LongSkip> long_skips;

  // Whether text is distributed over ranks like the image; otherwise every rank has all of it.
  bool joint_text() const;
};

constexpr auto FieldsOf(const BlockExchange*) {
  using base::Field;
  return std::tuple(Field("kind", &BlockExchange::kind), Field("second_attention", &BlockExchange::second_attention),
                    Field("text_ends", &BlockExchange::text_ends));
}

constexpr auto FieldsOf(const ExchangeModel*) {
  using base::Field;
  using M = ExchangeModel;
  constexpr base::Integer kFeatures = {0, 1 << 16};
  constexpr size_t kMaxBlocks = 1 << 10;
  return std::tuple(Field("width", &M::width, kFeatures), Field("output_features", &M::output_features, kFeatures),
                    Field("prediction_features", &M::prediction_features, kFeatures),
                    Field("blocks", &M::blocks, base::List<base::Nested>{.most = kMaxBlocks}),
                    Field("long_skips", &M::long_skips, base::List<base::Nested>{.most = kMaxBlocks}));
}
// A long skip leads from a block to a later one.
absl::Status CheckRules(const ExchangeModel& model);

// Rows of a batch (branches times jobs) that pass through the transformer together.
struct ForwardPass {
  int64_t image_tokens = 0;          // of one row
  std::vector<int64_t> text_tokens;  // of each row; rows of one cfg rank are padded to their longest
  int64_t element_bytes = 4;         // of the model's dtype
  std::vector<int> skipped_blocks;   // ascending
};

// Bytes that one rank sends, by the group that receives them.
struct ExchangedBytes {
  int64_t cfg = 0;       // predictions
  int64_t pipe = 0;      // states, long skips and the result, without the latents at a flush
  int64_t sequence = 0;  // the result's tokens
  int64_t ring = 0;      // keys and values
  int64_t ulysses = 0;   // queries, keys and values; results of attention
  int64_t tensor = 0;    // sums of row products

  int64_t total() const { return cfg + pipe + sequence + ring + ulysses + tensor; }
  ExchangedBytes& operator+=(const ExchangedBytes& other);
  bool operator==(const ExchangedBytes&) const = default;
};

// `stage_bounds`: stage s runs blocks [stage_bounds[s], stage_bounds[s + 1]). The layout must be valid for the model:
// heads are divisible by ulysses times tensor. Sizes must be those of real models, so that sums fit into 63 bits.
ExchangedBytes PassBytes(const ExchangeModel& model, const Mesh& mesh, std::span<const int> stage_bounds, int rank,
                         const ForwardPass& pass);

}  // namespace tessera::parallel
