#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/reference/operators.h"

namespace tessera::kernels::cpu {
namespace {

// The queries, keys or values of a projection.
struct Part {
  int64_t column;  // first column in the projection
  at::Tensor out;  // [b, n, g, h/g, d]
  HeadNorm norm;
  RotaryTables rotary;
};

std::vector<Part> PartsOf(const HeadNorm& query_norm, const HeadNorm& key_norm, const RotaryTables& rotary,
                          const HeadsOut& out) {
  std::vector<Part> parts;
  int64_t column = 0;
  const auto add = [&](const at::Tensor& part, const HeadNorm& norm, const RotaryTables& turn) {
    if (!part.defined()) return;
    parts.push_back({.column = column, .out = part, .norm = norm, .rotary = turn});
    column += part.size(2) * part.size(3) * part.size(4);
  };
  add(out.q, query_norm, rotary);
  add(out.k, key_norm, rotary);
  add(out.v, {}, {});
  return parts;
}

bool IsVector(const at::Tensor& vector, const at::Tensor& packed) {
  return !vector.defined() || (vector.is_contiguous() && vector.scalar_type() == packed.scalar_type());
}

// Returns whether `table` is [n, d/2] in the accumulation dtype.
bool IsTable(const at::Tensor& table, const at::Tensor& packed) {
  const at::ScalarType type = packed.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return !table.defined() || (table.is_contiguous() && table.scalar_type() == type && table.size(0) == packed.size(1));
}

bool HasVersion(const at::Tensor& packed, const std::vector<Part>& parts) {
  const at::ScalarType type = packed.scalar_type();
  return (type == at::kDouble || type == at::kFloat || type == at::kBFloat16) && packed.stride(-1) == 1 &&
         std::ranges::all_of(parts, [&](const Part& part) {
           return IsVector(part.norm.weight, packed) && IsVector(part.norm.bias, packed) &&
                  IsTable(part.rotary.cos, packed) && IsTable(part.rotary.sin, packed);
         });
}

// Sums in one fixed order, which at::mean does not guarantee.
void NormRopeOfDoubles(const TokenHeads& at, const double* weight, const double* bias, double eps, const double* cos,
                       const double* sin, const double* x, double* out) {
  const auto channels = static_cast<double>(at.channels);
  for (int64_t head = 0; head < at.groups * at.heads; ++head) {
    const double* in = x + head * at.channels;
    double* to = out + head / at.heads * at.group_stride + head % at.heads * at.head_stride;
    double mean = 0, squares = 0;
    for (int64_t c = 0; bias != nullptr && c < at.channels; ++c) mean += in[c] / channels;
    for (int64_t c = 0; c < at.channels; ++c) squares += (in[c] - mean) * (in[c] - mean);
    const double reciprocal = 1 / std::sqrt(squares / channels + eps);
    for (int64_t c = 0; c < at.channels; ++c) {
      to[c] = weight != nullptr ? (in[c] - mean) * reciprocal * weight[c] : in[c];
      if (bias != nullptr) to[c] += bias[c];
    }
    for (int64_t c = 0; cos != nullptr && c < at.channels; c += 2) {
      const double even = to[c], odd = to[c + 1], a = cos[c / 2], b = sin[c / 2];
      to[c] = even * a - odd * b;
      to[c + 1] = odd * a + even * b;
    }
  }
}

template <typename T>
const T* DataOf(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

// Returns a token's row of a table, or null without a table.
template <typename T>
const T* RowOf(const at::Tensor& table, int64_t token) {
  return table.defined() ? table.const_data_ptr<T>() + token * table.size(1) : nullptr;
}

// Writes one token's heads of a part.
void Write(const Part& part, at::ScalarType type, int64_t token, const void* in, void* to, Isa isa) {
  const at::Tensor& out = part.out;
  const TokenHeads heads{.groups = out.size(2),
                         .heads = out.size(3),
                         .channels = out.size(4),
                         .group_stride = out.stride(2),
                         .head_stride = out.stride(3)};
  if (type == at::kDouble) {
    NormRopeOfDoubles(heads, DataOf<double>(part.norm.weight), DataOf<double>(part.norm.bias), part.norm.eps,
                      RowOf<double>(part.rotary.cos, token), RowOf<double>(part.rotary.sin, token),
                      static_cast<const double*>(in), static_cast<double*>(to));
    return;
  }
  const auto data = [](const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; };
  ElementwiseFor(isa).norm_rope(type == at::kFloat ? Element::kFloat : Element::kBf16, heads,
                                {.weight = data(part.norm.weight),
                                 .bias = data(part.norm.bias),
                                 .eps = static_cast<float>(part.norm.eps),
                                 .cos = RowOf<float>(part.rotary.cos, token),
                                 .sin = RowOf<float>(part.rotary.sin, token)},
                                in, to);
}

}  // namespace

void QkvNormRope(const at::Tensor& packed, const HeadNorm& query_norm, const HeadNorm& key_norm,
                 const RotaryTables& rotary, const HeadsOut& out, Isa isa) {
  const std::vector<Part> parts = PartsOf(query_norm, key_norm, rotary, out);
  if (!HasVersion(packed, parts)) return reference::QkvNormRope(packed, query_norm, key_norm, rotary, out);
  const int64_t tokens = packed.size(1), size = packed.element_size();
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, packed.size(2)));
  ParallelFor(packed.size(0) * tokens, grain, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t image = row / tokens, token = row % tokens;
      const auto at = [&](const at::Tensor& x) { return (image * x.stride(0) + token * x.stride(1)) * size; };
      for (const Part& part : parts) {
        Write(part, packed.scalar_type(), token,
              static_cast<const char*>(packed.const_data_ptr()) + at(packed) + part.column * size,
              static_cast<char*>(part.out.mutable_data_ptr()) + at(part.out), isa);
      }
    }
  });
}

}  // namespace tessera::kernels::cpu
