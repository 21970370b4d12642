// Computes queries, keys and values from the projections of an attention and writes them once, to the place where they
// are read.
#pragma once

#include <ATen/ATen.h>

#include "parallel/forward_context.h"

namespace tessera::parallel {

// The inputs of an attention kernel: q [b, n, h, d]; k, v [b, t, h, d].
struct Qkv {
  at::Tensor q, k, v;
  double scale = 1.0;
  TokenRows queries = TokenRows::kImage;
  TokenRows keys = TokenRows::kImage;
};

// The numbers of tokens with queries, of all tokens, and of heads.
struct AttentionShape {
  explicit AttentionShape(const AttentionInput& input);

  int64_t batch, queries, keys, heads;
};

// Writes the rows of all projections in sequence. `out` is that of kernels::QkvNormRope, with rows for all tokens.
void WriteQkv(const AttentionInput& input, const kernels::HeadsOut& out);

// Returns tensors that are newly allocated, or views of the projection if they can be read there.
Qkv QkvOf(const AttentionInput& input);

}  // namespace tessera::parallel
