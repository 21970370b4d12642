#include "parallel/attention/policies.h"

#include "kernels/ops.h"
#include "parallel/functional.h"

namespace tessera::parallel {

// Every rank's part is written to the place it is sent from, and read from the place where it arrives. Tokens are the
// outermost dimension, so that the data for one rank is contiguous, and tensors with the same rows are sent as one.
Qkv UlyssesExchange::ToHeads(const AttentionInput& input) {
  const AttentionShape shape(input);
  const int64_t ranks = group_.size();
  TORCH_CHECK(shape.heads % ranks == 0, shape.heads, " heads are not divisible among ", ranks, " ranks");
  const at::TensorOptions options = input.projections[0].packed.options().requires_grad(false);
  const auto memory = [&](int64_t tokens, int64_t tensors) {
    return at::empty({ranks, tokens, tensors, shape.batch, shape.heads / ranks, input.head_dim}, options);
  };
  const auto place = [](const at::Tensor& memory, int64_t tensor) {  // [b, n, P, h/P, d]
    return memory.select(2, tensor).permute({2, 1, 0, 3, 4});
  };
  const auto arrived = [](const at::Tensor& whole, int64_t tensor) {  // [b, n of the group, h/P, d]
    return whole.select(1, tensor).transpose(0, 1);
  };
  const std::vector<int64_t> query_rows = tokens_.UlyssesRows(input.queries, patches_, ring_rank_);
  const std::vector<int64_t> key_rows = tokens_.UlyssesRows(input.keys, patches_, ring_rank_);
  Qkv result{.q = {}, .k = {}, .v = {}, .scale = input.scale, .queries = input.queries, .keys = input.keys};
  const bool together = input.queries == input.keys;
  const at::Tensor keys = memory(shape.keys, together ? 3 : 2);
  const at::Tensor queries = together ? keys : memory(shape.queries, 1);
  const int64_t k = together ? 1 : 0;
  WriteQkv(input, {.q = place(queries, 0), .k = place(keys, k), .v = place(keys, k + 1)});
  const at::Tensor all_keys = PartsToRows(keys, key_rows, group_);
  result.q = arrived(together ? all_keys : PartsToRows(queries, query_rows, group_), 0);
  result.k = arrived(all_keys, k);
  result.v = arrived(all_keys, k + 1);
  return result;
}

at::Tensor UlyssesExchange::ToTokens(const at::Tensor& read, TokenRows queries) {
  const std::vector<int64_t> rows = tokens_.UlyssesRows(queries, patches_, ring_rank_);
  const at::Tensor parts = RowsToParts(read.transpose(0, 1), rows, group_);  // [P, n, b, h/P, d]
  return parts.permute({2, 1, 0, 3, 4}).flatten(2, 3);                       // [b, n, h, d]
}

at::Tensor LocalReader::Read(const Qkv& qkv) {
  return kernels::Attention(qkv.q, qkv.k, qkv.v, std::nullopt, qkv.scale);
}

at::Tensor RingReader::Read(const Qkv& qkv) {
  return RingAttention(qkv.q, qkv.k, qkv.v, qkv.scale, tokens_.RingRows(qkv.keys, held_), ring_, buffers_);
}

at::Tensor PolicyAttention::Attend(int layer, const AttentionInput& input) {
  const Qkv to_read = store_.Renew(layer, exchange_.ToHeads(input));
  return exchange_.ToTokens(reader_.Read(to_read), to_read.queries);
}

}  // namespace tessera::parallel
