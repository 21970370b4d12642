#include "parallel/forward_context.h"

#include "kernels/ops.h"
#include "parallel/qkv.h"

namespace tessera::parallel {

at::Tensor LocalAttention::Attend(int, const AttentionInput& input) {
  const Qkv qkv = QkvOf(input);
  return kernels::Attention(qkv.q, qkv.k, qkv.v, std::nullopt, qkv.scale);
}

}  // namespace tessera::parallel
