#include "parallel/forward_context.h"

#include "kernels/ops.h"

namespace tessera {

at::Tensor LocalAttention::Attend(int layer, const Qkv& qkv) {
  return Attention(qkv.q, qkv.k, qkv.v, std::nullopt, qkv.scale);
}

}  // namespace tessera
