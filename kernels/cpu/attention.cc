#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/reference.h"

namespace tessera::cpu {
namespace {

const AttentionKernels& KernelsFor(Isa isa, Element element, double scale) {
  switch (isa) {
    case Isa::kBaseline:
      return kAttentionBaseline;
    case Isa::kAvx2:
      return kAttentionAvx2;
    case Isa::kAvx512:
    case Isa::kAvx512Bf16:
      return kAttentionAvx512;
    case Isa::kAmx:
      break;
  }
  return element == Element::kBf16 && scale > 0 ? kAttentionAmx : kAttentionAvx512;
}

bool IsSupported(const at::Tensor& x, const at::Tensor& q) {
  return x.dim() == 4 && x.numel() > 0 && x.scalar_type() == q.scalar_type();
}

at::Tensor WithContiguousHeads(const at::Tensor& x) { return x.stride(3) == 1 ? x : x.contiguous(); }

// The keys that can have a weight other than zero in one head.
struct KeySelection {
  std::vector<int32_t> keys;
  std::vector<float> bias;  // one per key, or empty where all are zero
};

// A softmax weight below e^-104 is zero in fp32. So a key whose bias lies further than that below the largest one, and
// further than two scores of one query can differ, has weight exactly zero and is left out.
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
    // Where the range is not a number this is false, and the key stays.
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

at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::optional<at::Tensor>& key_bias, double scale, Isa isa) {
  const bool narrow = q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16;
  if (!narrow || !IsSupported(q, q) || !IsSupported(k, q) || !IsSupported(v, q)) {
    return reference::Attention(q, k, v, key_bias, scale);
  }
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
  const Element element = q.scalar_type() == at::kFloat ? Element::kFloat : Element::kBf16;
  const AttentionKernels& kernels = KernelsFor(isa, element, scale);
  const at::Tensor queries = WithContiguousHeads(q);
  const at::Tensor keys = WithContiguousHeads(k);
  const at::Tensor values = WithContiguousHeads(v);
  const at::Tensor bias = key_bias.has_value() ? key_bias->to(at::kFloat).contiguous() : at::Tensor();
  at::Tensor out = at::empty(q.sizes(), q.options().memory_format(at::MemoryFormat::Contiguous));

  // A piece of work is one head, or a run of its rows where there are few heads; each piece packs its keys again.
  constexpr int64_t kPieces = 64;
  constexpr int64_t kShortestRun = 256;
  const int64_t wanted = (kPieces + batch * heads - 1) / (batch * heads);
  const int64_t runs = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, rows / kShortestRun));
  ParallelFor(batch * heads * runs, 1, [&](int64_t first, int64_t last) {
    const AlignedBuffer packed(kernels.packed_bytes(key_count, head_dim));
    const AlignedBuffer scratch(kernels.scratch_bytes(key_count, head_dim));
    KeySelection selection;
    int64_t packed_head = -1;
    for (int64_t piece = first; piece < last; ++piece) {
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

}  // namespace tessera::cpu
