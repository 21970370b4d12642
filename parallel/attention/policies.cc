#include "parallel/attention/policies.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>

#include "base/planted.h"
#include "kernels/ops.h"
#include "parallel/functional.h"

namespace tessera::parallel {

// Every rank's part is written where it is sent from, and read where it arrives: tokens come first, so that what goes
// to one rank lies together, and tensors of the same rows travel as one, side by side.
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

// [2, b, rows, h, d], in memory that all attentions of a pass use again.
at::Tensor RingReader::Buffer(size_t index, const at::Tensor& like, int64_t rows, int64_t most_rows) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape[2] = most_rows;
  at::Tensor& buffer = buffers_[index];
  if (const int64_t most = c10::multiply_integers(shape); !buffer.defined() || buffer.numel() < most) {
    buffer = at::empty({most}, like.options());
  }
  shape[2] = rows;
  return buffer.narrow(0, 0, c10::multiply_integers(shape)).view(shape);
}

at::Tensor RingReader::Read(const Qkv& qkv) {
  const std::vector<int64_t> rows = tokens_.RingRows(qkv.keys, held_);
  const int size = ring_.size(), rank = ring_.rank();
  const bool with_gradient = at::GradMode::is_enabled() && (qkv.k.requires_grad() || qkv.v.requires_grad());
  at::Tensor keys_values = at::stack({qkv.k, qkv.v});  // [2, b, t, h, d]
  at::Tensor sum, sum_lse;                             // in the dtype of the log-sum-exp
  for (int step = 0; step < size; ++step) {
    const int owner = (rank - step + size) % size, next_owner = (owner - 1 + size) % size;
    const bool last = step + 1 == size;
    at::Tensor next;
    if (!last && !with_gradient) {  // on its way while this rank computes
      next = Buffer(step % 2, keys_values, rows[static_cast<size_t>(next_owner)], std::ranges::max(rows));
      ring_.Start(std::array{Transfer::Send(keys_values, (rank + 1) % size),
                             Transfer::Receive(next, (rank - 1 + size) % size)});
    }
    if (rows[static_cast<size_t>(owner)] > 0 && qkv.q.size(1) > 0) {
      const auto [read, lse] = kernels::AttentionWithLse(qkv.q, keys_values[0], keys_values[1], qkv.scale);
      if (!sum.defined()) {
        sum = read.to(lse.scalar_type());
        sum_lse = lse;
      } else if (base::Planted("ring_merge_unscaled")) {
        sum = sum + read.to(lse.scalar_type());
      } else {
        std::tie(sum, sum_lse) = kernels::MergeAttention(sum, sum_lse, read, lse);
      }
    }
    if (last) break;
    if (with_gradient) {
      next = RingShift(keys_values, owner, rows, ring_);
    } else {
      ring_.Finish();
    }
    if (!base::Planted("ring_wrong_owner")) keys_values = next;
  }
  return sum.defined() ? sum.to(qkv.q.scalar_type()) : qkv.q;
}

at::Tensor PolicyAttention::Attend(int layer, const AttentionInput& input) {
  const Qkv to_read = store_.Renew(layer, exchange_.ToHeads(input));
  return exchange_.ToTokens(reader_.Read(to_read), to_read.queries);
}

}  // namespace tessera::parallel
