// Splits attention heads into a dimension.
#pragma once

#include <ATen/ATen.h>

namespace tessera::models {

// [b, tokens, h·d] → [b, tokens, h, d]. The number of heads comes from the tensor, so a sharded tensor needs no change.
inline at::Tensor SplitHeads(const at::Tensor& x, int64_t head_dim) { return x.unflatten(-1, {-1, head_dim}); }

}  // namespace tessera::models
