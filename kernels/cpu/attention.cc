#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/product.h"
#include "kernels/reference/operators.h"

namespace tessera::kernels::cpu {
namespace {

const AttentionKernels& KernelsFor(Isa isa, Element element, double scale) {
  switch (isa) {
    case Isa::kBaseline:
      return kAttentionBaseline;
    case Isa::kAvx2:
      return kAttentionAvx2;
    case Isa::kAvx512:
      return kAttentionAvx512;
    case Isa::kAvx512Bf16:
    case Isa::kAmx:
      break;
  }
  if (element == Element::kFloat) return kAttentionAvx512;
  return isa == Isa::kAmx && scale > 0 ? kAttentionAmx : kAttentionAvx512Bf16;
}

bool IsSupported(const at::Tensor& x, const at::Tensor& q) {
  return x.dim() == 4 && x.numel() > 0 && x.scalar_type() == q.scalar_type();
}

at::Tensor WithContiguousHeads(const at::Tensor& x) { return x.stride(3) == 1 ? x : x.contiguous(); }

// The keys that can have a weight other than zero in one head.
struct KeySelection {
  std::vector<int32_t> keys;
  std::vector<float> bias;  // one per key, or empty if all are zero
};

// A softmax weight below e^-104 is zero in fp32. A key whose bias is lower than the largest bias by more than that and
// more than two scores of one query can differ has weight exactly zero, and is left out.
KeySelection SelectKeys(const float* bias, int64_t count, double score_range) {
  constexpr double kZeroWeight = 104.0;
  KeySelection selection;
  if (bias == nullptr) {
    selection.keys.resize(count);
    std::iota(selection.keys.begin(), selection.keys.end(), 0);
    return selection;
  }
  const float largest = *std::max_element(bias, bias + count);
  bool all_zero = true;
  for (int64_t key = 0; key < count; ++key) {
    // If the range is NaN this is false and the key is kept.
    if (bias[key] < largest - (score_range + kZeroWeight)) continue;
    selection.keys.push_back(static_cast<int32_t>(key));
    selection.bias.push_back(bias[key]);
    all_zero = all_zero && bias[key] == 0;
  }
  if (all_zero) selection.bias.clear();
  return selection;
}

// An upper bound of the difference between two scores of one query: twice scale × the largest |q| × the largest |k|.
double ScoreRange(const AttentionHead& head, Element element, int64_t rows, int64_t key_count, Isa isa) {
  const auto largest_square = ElementwiseFor(isa).largest_square;
  const double q = largest_square(element, rows, head.q_stride, head.head_dim, head.q);
  const double k = largest_square(element, key_count, head.k_stride, head.head_dim, head.k);
  return 2 * std::abs(static_cast<double>(head.scale)) * std::sqrt(q * k);
}

const void* At(const at::Tensor& x, int64_t b, int64_t h) {
  return static_cast<const char*>(x.const_data_ptr()) + (b * x.stride(0) + h * x.stride(2)) * x.element_size();
}

}  // namespace

namespace {

constexpr double kZeroWeightOfDouble = 746;  // e^-746 is zero in fp64

// The keys of one batch entry whose weight can be other than zero, selected as in SelectKeys, in fp64.
std::vector<int64_t> SelectKeysOfDouble(const at::Tensor& q, const at::Tensor& k, const at::Tensor& bias,
                                        double scale) {
  const auto largest_square = [](const at::Tensor& x) { return x.square().sum(-1).max().item<double>(); };
  const double range = 2 * std::abs(scale) * std::sqrt(largest_square(q) * largest_square(k));
  const double* values = bias.const_data_ptr<double>();
  const double largest = *std::max_element(values, values + bias.numel());
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < bias.numel(); ++key) {
    if (!(values[key] < largest - (range + kZeroWeightOfDouble))) keys.push_back(key);
  }
  return keys;
}

// Turns scores [keys] of one row into weights in place, normalised by their sum. Returns the log-sum-exp.
double SoftmaxOfDoubles(const double* bias, double scale, int64_t keys, double* scores) {
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t key = 0; key < keys; ++key) {
    scores[key] = scores[key] * scale + (bias != nullptr ? bias[key] : 0);
    largest = std::max(largest, scores[key]);
  }
  double total = 0;
  for (int64_t key = 0; key < keys; ++key) {
    scores[key] = std::exp(scores[key] - largest);
    total += scores[key];
  }
  for (int64_t key = 0; key < keys; ++key) scores[key] /= total;
  return largest + std::log(total);
}

// Computes both products of each head with the product's kernels, one block of rows at a time. The scores of a block
// are stored as a whole.
void AttendDoubles(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& key_bias,
                   double scale, Isa isa, const at::Tensor& out, const at::Tensor& lse) {
  const ProductKernels& kernels = ProductFor(isa, ProductElement::kDouble);
  const int64_t rows = q.size(1), heads = q.size(2), d = q.size(3);
  const auto at = [](const at::Tensor& x, int64_t h) { return x.const_data_ptr<double>() + h * x.stride(2); };
  for (int64_t b = 0; b < q.size(0); ++b) {
    const at::Tensor queries = q.narrow(0, b, 1);
    at::Tensor keys = k.narrow(0, b, 1), values = v.narrow(0, b, 1);
    at::Tensor bias = key_bias.defined() ? key_bias[b].contiguous() : key_bias;
    if (bias.defined()) {
      const std::vector<int64_t> kept = SelectKeysOfDouble(queries, keys, bias, scale);
      const at::Tensor index = at::tensor(kept, at::kLong);
      keys = keys.index_select(1, index);
      values = values.index_select(1, index);
      bias = bias.index_select(0, index);
    }
    const int64_t count = keys.size(1);
    const int64_t key_panels = (count + kernels.columns - 1) / kernels.columns;
    const int64_t value_panels = (d + kernels.columns - 1) / kernels.columns;
    ParallelFor(heads, 1, [&](int64_t first, int64_t last) {
      const AlignedBuffer packed_keys(key_panels * kernels.panel_bytes(d));
      const AlignedBuffer packed_values(value_panels * kernels.panel_bytes(count));
      const AlignedBuffer prepared(
          std::max(kernels.prepared_bytes(kProductRows, d), kernels.prepared_bytes(kProductRows, count)));
      const AlignedBuffer scratch(std::max(kernels.scratch_bytes(d), kernels.scratch_bytes(count)));
      std::vector<double> scores(static_cast<size_t>(std::min(rows, kProductRows) * count));
      const auto panel_at = [&](const AlignedBuffer& buffer, int64_t panel, int64_t depth) {
        return static_cast<char*>(buffer.get()) + panel * kernels.panel_bytes(depth);
      };
      for (int64_t h = first; h < last; ++h) {
        for (int64_t panel = 0; panel < key_panels; ++panel) {
          const int64_t key = panel * kernels.columns;
          kernels.pack({.data = at(keys, h) + key * keys.stride(1),
                        .depth_stride = keys.stride(3),
                        .column_stride = keys.stride(1),
                        .columns = std::min(kernels.columns, count - key)},
                       d, panel_at(packed_keys, panel, d));
        }
        for (int64_t panel = 0; panel < value_panels; ++panel) {
          const int64_t channel = panel * kernels.columns;
          kernels.pack({.data = at(values, h) + channel * values.stride(3),
                        .depth_stride = values.stride(1),
                        .column_stride = values.stride(3),
                        .columns = std::min(kernels.columns, d - channel)},
                       count, panel_at(packed_values, panel, count));
        }
        for (int64_t row = 0; row < rows; row += kProductRows) {
          ProductTile tile{.rows = std::min(kProductRows, rows - row), .depth = d, .out_stride = count};
          kernels.prepare(at(queries, h) + row * queries.stride(1), queries.stride(1), tile.rows, d, prepared.get());
          for (int64_t panel = 0; panel < key_panels; ++panel) {
            tile.columns = std::min(kernels.columns, count - panel * kernels.columns);
            tile.out = scores.data() + panel * kernels.columns;
            kernels.multiply(prepared.get(), panel_at(packed_keys, panel, d), tile, scratch.get());
          }
          for (int64_t i = 0; i < tile.rows; ++i) {
            const double of_row = SoftmaxOfDoubles(bias.defined() ? bias.const_data_ptr<double>() : nullptr, scale,
                                                   count, scores.data() + i * count);
            if (lse.defined()) lse.mutable_data_ptr<double>()[((b * rows) + row + i) * heads + h] = of_row;
          }
          tile.depth = count;
          tile.out_stride = heads * d;
          kernels.prepare(scores.data(), count, tile.rows, count, prepared.get());
          for (int64_t panel = 0; panel < value_panels; ++panel) {
            const int64_t channel = panel * kernels.columns;
            tile.columns = std::min(kernels.columns, d - channel);
            tile.out = out.mutable_data_ptr<double>() + ((b * rows + row) * heads + h) * d + channel;
            kernels.multiply(prepared.get(), panel_at(packed_values, panel, count), tile, scratch.get());
          }
        }
      }
    });
  }
}

bool HasVersion(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const at::ScalarType type = q.scalar_type();
  return (type == at::kDouble || type == at::kFloat || type == at::kBFloat16) && IsSupported(q, q) &&
         IsSupported(k, q) && IsSupported(v, q);
}

// If `lse` is defined, the log-sum-exp is written to it, [b, n, h] in max(fp32, dtype).
at::Tensor Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const std::optional<at::Tensor>& key_bias, double scale, Isa isa, const at::Tensor& lse) {
  const int64_t batch = q.size(0);
  const int64_t rows = q.size(1);
  const int64_t heads = q.size(2);
  const int64_t head_dim = q.size(3);
  const int64_t key_count = k.size(1);
  TORCH_CHECK(k.size(0) == batch && k.size(2) == heads && k.size(3) == head_dim && k.sizes().equals(v.sizes()),
              "attention: keys ", k.sizes(), " and values ", v.sizes(), " do not fit queries ", q.sizes());
  TORCH_CHECK(
      !key_bias.has_value() || (key_bias->dim() == 2 && key_bias->size(0) == batch && key_bias->size(1) == key_count),
      "attention: the key bias must be [batch, keys]");
  at::Tensor out = at::empty(q.sizes(), q.options().memory_format(at::MemoryFormat::Contiguous));
  if (q.scalar_type() == at::kDouble) {
    const at::Tensor bias = key_bias.has_value() ? key_bias->to(at::kDouble) : at::Tensor();
    AttendDoubles(WithContiguousHeads(q), k, v, bias, scale, isa, out, lse);
    return out;
  }
  const Element element = q.scalar_type() == at::kFloat ? Element::kFloat : Element::kBf16;
  const AttentionKernels& kernels = KernelsFor(isa, element, scale);
  const at::Tensor queries = WithContiguousHeads(q);
  const at::Tensor keys = WithContiguousHeads(k);
  const at::Tensor values = WithContiguousHeads(v);
  const at::Tensor bias = key_bias.has_value() ? key_bias->to(at::kFloat).contiguous() : at::Tensor();

  // A piece of work is one head or, if there are few heads, a run of its rows. Each piece packs the head's keys again.
  constexpr int64_t kPieces = 64;
  constexpr int64_t kShortestRun = 256;
  const int64_t wanted = (kPieces + batch * heads - 1) / (batch * heads);
  const int64_t runs = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, rows / kShortestRun));
  ShareOut(batch * heads * runs, [&](const TakePieces& take) {
    const AlignedBuffer packed(kernels.packed_bytes(key_count, head_dim));
    const AlignedBuffer scratch(kernels.scratch_bytes(key_count, head_dim));
    KeySelection selection;
    int64_t packed_head = -1;
    for (PieceShares::Range taken = take(1); !taken.empty(); taken = take(1)) {
      const int64_t piece = taken.first;
      const int64_t head_index = piece / runs;
      const int64_t run = piece % runs;
      const int64_t b = head_index / heads;
      const int64_t h = head_index % heads;
      AttentionHead head = {
          .q = At(queries, b, h),
          .k = At(keys, b, h),
          .v = At(values, b, h),
          .out = const_cast<void*>(At(out, b, h)),
          .q_stride = queries.stride(1),
          .k_stride = keys.stride(1),
          .v_stride = values.stride(1),
          .out_stride = out.stride(1),
          .head_dim = head_dim,
          .scale = static_cast<float>(scale),
          .lse = lse.defined() ? lse.mutable_data_ptr<float>() + b * rows * heads + h : nullptr,
          .lse_stride = heads,
      };
      if (head_index != packed_head) {
        const float* head_bias = bias.defined() ? bias.const_data_ptr<float>() + b * key_count : nullptr;
        const double range = bias.defined() ? ScoreRange(head, element, rows, key_count, isa) : 0;
        selection = SelectKeys(head_bias, key_count, range);
      }
      head.keys = selection.keys.data();
      head.bias = selection.bias.empty() ? nullptr : selection.bias.data();
      head.key_count = static_cast<int64_t>(selection.keys.size());
      if (head_index != packed_head) kernels.pack(element, head, packed.get());
      packed_head = head_index;
      kernels.attend(element, head, rows * run / runs, rows * (run + 1) / runs, packed.get(), scratch.get());
    }
  });
  return out;
}

}  // namespace

at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::optional<at::Tensor>& key_bias, double scale, Isa isa) {
  if (!HasVersion(q, k, v)) return reference::Attention(q, k, v, key_bias, scale);
  return Attend(q, k, v, key_bias, scale, isa, at::Tensor());
}

std::tuple<at::Tensor, at::Tensor> AttentionWithLse(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    double scale, Isa isa) {
  if (!HasVersion(q, k, v)) return reference::AttentionWithLse(q, k, v, scale);
  return BiasedAttentionWithLse(q, k, v, std::nullopt, scale, isa);
}

std::tuple<at::Tensor, at::Tensor> BiasedAttentionWithLse(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                          const std::optional<at::Tensor>& key_bias, double scale,
                                                          Isa isa) {
  const at::ScalarType wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor lse = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(wide));
  // The powers of two of the tile version are too coarse for results that are merged by their sums.
  const at::Tensor read = Attend(q, k, v, key_bias, scale, std::min(isa, Isa::kAvx512Bf16), lse);
  return {read, lse};
}

std::tuple<at::Tensor, at::Tensor> MergeAttention(const at::Tensor& read, const at::Tensor& lse,
                                                  const at::Tensor& other_read, const at::Tensor& other_lse) {
  const at::ScalarType type = lse.scalar_type();
  if (type != at::kDouble && type != at::kFloat) return reference::MergeAttention(read, lse, other_read, other_lse);
  TORCH_CHECK(read.sizes().equals(other_read.sizes()) && lse.sizes().equals(other_lse.sizes()) && read.dim() == 4 &&
                  lse.numel() * read.size(3) == read.numel() && other_lse.scalar_type() == type,
              "merge_attention: reads ", read.sizes(), " and ", other_read.sizes(), " do not fit ", lse.sizes());
  const at::Tensor own = read.to(type).contiguous(), other = other_read.to(type).contiguous();
  const at::Tensor own_lse = lse.contiguous(), their_lse = other_lse.contiguous();
  at::Tensor merged = at::empty_like(own), merged_lse = at::empty_like(own_lse);
  const int64_t d = read.size(3);
  const auto merge = [&]<typename T>(T*) {
    const T *a = own.const_data_ptr<T>(), *b = other.const_data_ptr<T>();
    const T *a_lse = own_lse.const_data_ptr<T>(), *b_lse = their_lse.const_data_ptr<T>();
    T *to = merged.mutable_data_ptr<T>(), *to_lse = merged_lse.mutable_data_ptr<T>();
    ParallelFor(own_lse.numel(), 64, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const T high = std::max(a_lse[row], b_lse[row]), low = std::min(a_lse[row], b_lse[row]);
        to_lse[row] = high + std::log1p(std::exp(low - high));
        const T a_weight = std::exp(a_lse[row] - to_lse[row]), b_weight = std::exp(b_lse[row] - to_lse[row]);
        for (int64_t c = row * d; c < (row + 1) * d; ++c) to[c] = a[c] * a_weight + b[c] * b_weight;
      }
    });
  };
  if (type == at::kDouble) {
    merge(static_cast<double*>(nullptr));
  } else {
    merge(static_cast<float*>(nullptr));
  }
  return {merged, merged_lse};
}

}  // namespace tessera::kernels::cpu
