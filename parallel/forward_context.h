// What every Forward is given besides its tensors: the door through which parallelism enters model code. Built in the
// worker's main (or a test) and passed by reference; nothing here is global.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "kernels/ops.h"
#include "parallel/adapter_factors.h"
#include "parallel/communicator.h"
#include "parallel/plan/tensor_tokens.h"
#include "parallel/plan/token_layout.h"

namespace tessera::parallel {

// Some tokens' queries, keys and values as their product gave them, and what is still to be done to them.
struct Projection {
  at::Tensor packed;         // [b, tokens, 3·h·d]: queries, keys, values; [b, tokens, 2·h·d] without queries
  bool with_queries = true;  // without, nobody reads what these tokens would get
  kernels::HeadNorm query_norm, key_norm;
  kernels::RotaryTables rotary;  // of these tokens
};

// One attention of a forward pass. The tokens of its projections lie one after another.
struct AttentionInput {
  std::vector<Projection> projections;
  int64_t head_dim = 0;
  double scale = 1.0;  // of the scores, usually 1/sqrt(d)
  TokenRows queries = TokenRows::kImage;
  TokenRows keys = TokenRows::kImage;
};

// Attention over the tokens of the whole image. Model code projects its own tokens and asks for their result; which
// ranks hold the other tokens is the context's business, and so is where queries, keys and values are written.
class AttentionContext {
 public:
  virtual ~AttentionContext() = default;

  // `layer` tells apart the attentions of one forward pass. Returns [b, n, h, d] for the tokens with queries.
  virtual at::Tensor Attend(int layer, const AttentionInput& input) = 0;
};

// One rank holds every token and every head.
class LocalAttention final : public AttentionContext {
 public:
  at::Tensor Attend(int layer, const AttentionInput& input) override;
};

struct ForwardContext {
  AttentionContext& attention;
  Communicator& tensor;                      // the ranks that share one layer's weights
  Communicator& world;                       // the ranks that make one image together; its rows are decoded over them
  const AdapterFactors* adapters = nullptr;  // of the component that runs; null: none
  // Which tokens the ranks of `tensor` hold outside of the products that they share; null: each holds all of them.
  const TensorTokens* tensor_tokens = nullptr;
};

}  // namespace tessera::parallel
