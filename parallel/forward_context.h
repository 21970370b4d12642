// ForwardContext is what every Forward receives in addition to its tensors: the interface through which parallelism
// reaches model code. It is built in the worker's main function (or a test) and passed by reference; nothing is global.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "kernels/ops.h"
#include "parallel/adapter_factors.h"
#include "parallel/communicator.h"
#include "parallel/plan/tensor_tokens.h"
#include "parallel/plan/token_layout.h"

namespace tessera::parallel {

// The queries, keys and values of some tokens as their product returned them, and the operations still to be applied.
struct Projection {
  at::Tensor packed;         // [b, tokens, 3·h·d]: queries, keys, values; [b, tokens, 2·h·d] without queries
  bool with_queries = true;  // false if the result for these tokens is not used
  kernels::HeadNorm query_norm, key_norm;
  kernels::RotaryTables rotary;  // of these tokens
};

// One attention of a forward pass. The tokens of its projections are concatenated.
struct AttentionInput {
  std::vector<Projection> projections;
  int64_t head_dim = 0;
  double scale = 1.0;  // of the scores, usually 1/sqrt(d)
  TokenRows queries = TokenRows::kImage;
  TokenRows keys = TokenRows::kImage;
};

// Computes attention over the tokens of the whole image. Model code projects its own tokens and receives their result;
// the context decides which ranks hold the other tokens and where queries, keys and values are written.
class AttentionContext {
 public:
  virtual ~AttentionContext() = default;

  // `layer` identifies the attention within a forward pass. Returns [b, n, h, d] for the tokens with queries.
  virtual at::Tensor Attend(int layer, const AttentionInput& input) = 0;
};

// For a rank that holds every token and every head.
class LocalAttention final : public AttentionContext {
 public:
  at::Tensor Attend(int layer, const AttentionInput& input) override;
};

struct ForwardContext {
  AttentionContext& attention;
  Communicator& tensor;                      // ranks that share one layer's weights
  Communicator& world;                       // ranks that make one image together and share the decoding of its rows
  const AdapterFactors* adapters = nullptr;  // of the running component; null: none
  // The tokens that each rank of `tensor` holds outside of the shared products; null: each rank holds all tokens.
  const TensorTokens* tensor_tokens = nullptr;
};

}  // namespace tessera::parallel
