// Attention heads as an own dimension.
#pragma once

#include <ATen/ATen.h>

namespace tessera::models {

// [b, tokens, h·d] → [b, tokens, h, d]; the number of heads comes from the tensor, so a sharded one needs no change.
inline at::Tensor SplitHeads(const at::Tensor& x, int64_t head_dim) { return x.unflatten(-1, {-1, head_dim}); }

}  // namespace tessera::models
