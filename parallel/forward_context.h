// What every Forward is given besides its tensors: the door through which parallelism enters model code. Built in the
// worker's main (or a test) and passed by reference; nothing here is global.
#pragma once

#include <ATen/ATen.h>

#include "parallel/communicator.h"
#include "parallel/plan/token_layout.h"

namespace tessera::parallel {

// Projected queries, keys and values of one attention: q [b, n, h, d]; k, v [b, t, h, d].
struct Qkv {
  at::Tensor q, k, v;
  double scale = 1.0;  // of the scores, usually 1/sqrt(d)
  TokenRows queries = TokenRows::kImage;
  TokenRows keys = TokenRows::kImage;
};

// Attention over the tokens of the whole image. Model code projects its own tokens and asks for their result; which
// ranks hold the other tokens is the context's business.
class AttentionContext {
 public:
  virtual ~AttentionContext() = default;

  // `layer` tells apart the attentions of one forward pass. Returns [b, n, h, d], the rows of `qkv.q`.
  virtual at::Tensor Attend(int layer, const Qkv& qkv) = 0;
};

// One rank holds every token and every head.
class LocalAttention final : public AttentionContext {
 public:
  at::Tensor Attend(int layer, const Qkv& qkv) override;
};

struct ForwardContext {
  AttentionContext& attention;
  Communicator& tensor;  // the ranks that share one layer's weights
  Communicator& world;   // the ranks that make one image together; its rows are decoded over them
};

}  // namespace tessera::parallel
