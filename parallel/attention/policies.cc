#include "parallel/attention/policies.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>

#include "base/planted.h"
#include "kernels/ops.h"
#include "parallel/functional.h"

namespace tessera::parallel {

Qkv UlyssesExchange::ToHeads(const Qkv& qkv) {
  const std::vector<int64_t> query_rows = tokens_.UlyssesRows(qkv.queries, patches_, ring_rank_);
  const std::vector<int64_t> key_rows = tokens_.UlyssesRows(qkv.keys, patches_, ring_rank_);
  Qkv result = qkv;
  // Tensors of the same rows travel as one, side by side in the batch.
  if (qkv.queries == qkv.keys) {
    const std::vector<at::Tensor> parts = TokensToHeads(at::cat({qkv.q, qkv.k, qkv.v}), query_rows, group_).chunk(3, 0);
    result.q = parts[0];
    result.k = parts[1];
    result.v = parts[2];
    return result;
  }
  result.q = TokensToHeads(qkv.q, query_rows, group_);
  const std::vector<at::Tensor> parts = TokensToHeads(at::cat({qkv.k, qkv.v}), key_rows, group_).chunk(2, 0);
  result.k = parts[0];
  result.v = parts[1];
  return result;
}

at::Tensor UlyssesExchange::ToTokens(const at::Tensor& read, TokenRows queries) {
  return HeadsToTokens(read, tokens_.UlyssesRows(queries, patches_, ring_rank_), group_);
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

at::Tensor PolicyAttention::Attend(int layer, const Qkv& qkv) {
  const Qkv to_read = store_.Renew(layer, exchange_.ToHeads(qkv));
  return exchange_.ToTokens(reader_.Read(to_read), to_read.queries);
}

}  // namespace tessera::parallel
