#include "parallel/forward_context.h"

#include "kernels/ops.h"

namespace tessera::parallel {

at::Tensor LocalAttention::Attend(int layer, const Qkv& qkv) {
  return kernels::Attention(qkv.q, qkv.k, qkv.v, std::nullopt, qkv.scale);
}

}  // namespace tessera::parallel
