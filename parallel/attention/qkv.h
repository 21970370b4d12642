// From the projections of an attention to the queries, keys and values that are read, written once, where they are
// wanted.
#pragma once

#include <ATen/ATen.h>

#include "parallel/forward_context.h"

namespace tessera::parallel {

// Ready to be read: q [b, n, h, d]; k, v [b, t, h, d].
struct Qkv {
  at::Tensor q, k, v;
  double scale = 1.0;
  TokenRows queries = TokenRows::kImage;
  TokenRows keys = TokenRows::kImage;
};

// Tokens with queries, all tokens, and heads.
struct AttentionShape {
  explicit AttentionShape(const AttentionInput& input);

  int64_t batch, queries, keys, heads;
};

// Writes every projection's rows, one projection after another, to places of all tokens: `out` as kernels::HeadsOut has
// it.
void WriteQkv(const AttentionInput& input, const kernels::HeadsOut& out);

// In memory of their own, or in that of the projection where they can be read there.
Qkv QkvOf(const AttentionInput& input);

}  // namespace tessera::parallel
