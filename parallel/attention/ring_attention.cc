#include "parallel/attention/ring_attention.h"

#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/macros/planted.h"
#include "kernels/ops.h"

namespace tessera::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Number of scores in memory at a time in the backward pass, except for fp32 on the CPU.
constexpr int64_t kMostScores = int64_t{1} << 24;

at::ScalarType AccumulationOf(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// Returns [2, b, rows, h, d] in newly allocated memory, or in memory that all attentions of a pass reuse.
at::Tensor Buffer(at::Tensor& buffer, const at::Tensor& like, int64_t rows, int64_t most_rows) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape[2] = most_rows;
  if (const int64_t most = c10::multiply_integers(shape); !buffer.defined() || buffer.numel() < most) {
    buffer = at::empty({most}, like.options());
  }
  shape[2] = rows;
  return buffer.narrow(0, 0, c10::multiply_integers(shape)).view(shape);
}

struct Read {
  at::Tensor sum, lse;  // [b, n, h, d] and [b, n, h] in the accumulation dtype; undefined without queries or keys
};

Read GoRound(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
             const std::vector<int64_t>& rows, Communicator& ring, RingBuffers& buffers) {
  const int size = ring.size(), rank = ring.rank();
  at::Tensor keys_values = at::stack({k, v});  // [2, b, t, h, d]
  Read all;
  for (int step = 0; step < size; ++step) {
    const int owner = (rank - step + size) % size, next_owner = (owner - 1 + size) % size;
    const bool last = step + 1 == size;
    at::Tensor next;
    if (!last) {  // in transit while this rank computes
      next = Buffer(buffers.in_turn[static_cast<size_t>(step % 2)], keys_values, rows[static_cast<size_t>(next_owner)],
                    std::ranges::max(rows));
      ring.Start(std::array{Transfer::Send(keys_values, (rank + 1) % size),
                            Transfer::Receive(next, (rank - 1 + size) % size)});
    }
    if (rows[static_cast<size_t>(owner)] > 0 && q.size(1) > 0) {
      const auto [read, lse] = kernels::AttentionWithLse(q, keys_values[0], keys_values[1], scale);
      if (!all.sum.defined()) {
        all = {.sum = read.to(lse.scalar_type()), .lse = lse};
      } else if (base::Planted("ring_merge_unscaled")) {
        all.sum = all.sum + read.to(lse.scalar_type());
      } else {
        std::tie(all.sum, all.lse) = kernels::MergeAttention(all.sum, all.lse, read, lse);
      }
    }
    if (last) break;
    ring.Finish();
    if (!base::Planted("ring_wrong_owner")) keys_values = next;
  }
  return all;
}

// What a rank's queries have read from all keys, for the backward pass; in the accumulation dtype, all [b, h, n, d]
// except `lse`, [b, h, n].
struct Reading {
  at::Tensor queries, result, of_result, lse;
  double scale;
};

// Gradients of one rank's queries and of one rank's keys and values, all [b, h, tokens, d] in the accumulation dtype.
struct Gradients {
  at::Tensor q, k, v;

  void Add(const Reading& reading, const at::Tensor& keys, const at::Tensor& values) {
    if (keys.is_cpu() && keys.scalar_type() == at::kFloat) return AddOnHost(reading, keys, values);
    const at::Tensor delta = (reading.result * reading.of_result).sum(-1, /*keepdim=*/true),
                     lse = reading.lse.unsqueeze(-1);
    const int64_t n = reading.queries.size(2);
    const int64_t per_query = reading.queries.size(0) * reading.queries.size(1) * keys.size(2);
    const int64_t most = std::max<int64_t>(1, kMostScores / std::max<int64_t>(1, per_query));
    for (int64_t first = 0; first < n; first += most) {
      const int64_t count = std::min(most, n - first);
      const auto part = [&](const at::Tensor& x) { return x.narrow(2, first, count); };
      const at::Tensor queries = part(reading.queries), of_result = part(reading.of_result);
      const at::Tensor weights = at::exp(at::matmul(queries, keys.transpose(-1, -2)) * reading.scale - part(lse));
      v += at::matmul(weights.transpose(-1, -2), of_result);
      const at::Tensor of_scores =
          weights * (at::matmul(of_result, values.transpose(-1, -2)) - part(delta)) * reading.scale;
      part(q) += at::matmul(of_scores, keys);
      k += at::matmul(of_scores.transpose(-1, -2), queries);
    }
  }

 private:
  // Processes blocks of scores. Given the result and the log-sum-exp over all keys, the gradient for some keys is that
  // of an attention over these keys alone.
  void AddOnHost(const Reading& reading, const at::Tensor& keys, const at::Tensor& values) {
    const auto [of_q, of_k, of_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        reading.of_result, reading.queries, keys, values, reading.result, reading.lse, /*dropout_p=*/0,
        /*is_causal=*/false, /*attn_mask=*/std::nullopt, reading.scale);
    q += of_q;
    k += of_k;
    v += of_v;
  }
};

struct RingFunction : torch::autograd::Function<RingFunction> {
  static Variable forward(AutogradContext* context, const Variable& q, const Variable& k, const Variable& v,
                          double scale, const std::vector<int64_t>& rows, int64_t ring) {
    Communicator& group = *reinterpret_cast<Communicator*>(ring);  // NOLINT: an IValue carries no reference
    RingBuffers buffers;
    const Read read = GoRound(q, k, v, scale, rows, group, buffers);
    const at::Tensor result = read.sum.defined() ? read.sum.to(q.scalar_type()) : at::zeros_like(q);
    const at::Tensor lse = read.lse.defined()
                               ? read.lse
                               : at::zeros({q.size(0), q.size(1), q.size(2)}, q.options().dtype(AccumulationOf(q)));
    context->save_for_backward({q, k, v, result, lse});
    context->saved_data["scale"] = scale;
    context->saved_data["rows"] = rows;
    context->saved_data["ring"] = ring;
    return result;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const std::vector<int64_t> rows = context->saved_data["rows"].toIntVector();
    Communicator& ring = *reinterpret_cast<Communicator*>(context->saved_data["ring"].toInt());  // NOLINT
    const int size = ring.size(), rank = ring.rank();
    const at::ScalarType wide = AccumulationOf(saved[0]);
    const auto heads = [&](const at::Tensor& x) { return x.to(wide).transpose(1, 2); };  // [b, h, tokens, d]
    const auto tokens = [&](const at::Tensor& x) { return x.transpose(1, 2).to(saved[0].scalar_type()); };
    const Reading reading{.queries = heads(saved[0]),
                          .result = heads(saved[3]),
                          .of_result = heads(gradients[0]),
                          .lse = saved[4].transpose(1, 2),
                          .scale = context->saved_data["scale"].toDouble()};

    // Keys, values and their gradients [2, b, t, h, d]; gradients are summed in the accumulation dtype.
    at::Tensor keys_values = at::stack({saved[1], saved[2]});
    at::Tensor sums = at::zeros(keys_values.sizes(), keys_values.options().dtype(wide));
    const at::Tensor of_queries = at::zeros_like(reading.queries);
    for (int step = 0; step < size; ++step) {
      const int owner = (rank - step + size) % size, next_owner = (owner - 1 + size) % size;
      if (rows[static_cast<size_t>(owner)] > 0 && reading.queries.size(2) > 0) {
        Gradients own{.q = of_queries, .k = sums[0].transpose(1, 2), .v = sums[1].transpose(1, 2)};
        own.Add(reading, heads(keys_values[0]), heads(keys_values[1]));
      }
      if (size == 1) break;
      // The last transfer returns the gradients to their owner, without keys.
      const auto arriving = [&](const at::Tensor& x) {
        std::vector<int64_t> shape = x.sizes().vec();
        shape[2] = rows[static_cast<size_t>(next_owner)];
        return at::empty(shape, x.options());
      };
      const int next = (rank + 1) % size, previous = (rank - 1 + size) % size;
      const at::Tensor next_sums = arriving(sums);
      std::vector<Transfer> transfers = {Transfer::Send(sums, next), Transfer::Receive(next_sums, previous)};
      if (step + 1 < size) {
        transfers.push_back(Transfer::Send(keys_values, next));
        keys_values = arriving(keys_values);
        transfers.push_back(Transfer::Receive(keys_values, previous));
      }
      ring.Exchange(transfers);
      if (!base::Planted("ring_gradients_stay")) sums = next_sums;
    }
    return {tokens(of_queries),
            sums[0].to(saved[1].scalar_type()),
            sums[1].to(saved[2].scalar_type()),
            Variable(),
            Variable(),
            Variable()};
  }
};

}  // namespace

at::Tensor RingAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                         const std::vector<int64_t>& rows, Communicator& ring, RingBuffers& buffers) {
  if (at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad())) {
    return RingFunction::apply(q, k, v, scale, rows, reinterpret_cast<int64_t>(&ring));  // NOLINT
  }
  const Read read = GoRound(q, k, v, scale, rows, ring, buffers);
  return read.sum.defined() ? read.sum.to(q.scalar_type()) : q;
}

}  // namespace tessera::parallel
