#include "kernels/cpu/quantized_rows.h"

#include <algorithm>

#include "base/macros/planted.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_vectors.h"

namespace tessera::kernels::cpu {
namespace {

// Rows [first, first + count) of one image among all rows.
struct RowPart {
  int64_t image, first, count;
};

// The rows as a kernel sees them that gets the addresses of the part's first row and of its image's vectors.
Rows KernelRows(const RowPart& part, int64_t channels) {
  return {.first = 0, .last = part.count, .channels = channels, .rows_per_batch = part.count, .vector_stride = 0};
}

const void* RowAt(const at::Tensor& rows, int64_t row) {
  return static_cast<const char*>(rows.const_data_ptr()) + row * rows.size(-1) * rows.element_size();
}
void* MutableRowAt(const at::Tensor& rows, int64_t row) {
  return static_cast<char*>(rows.mutable_data_ptr()) + row * rows.size(-1) * rows.element_size();
}

// The vector [c] of an image, of vectors [b, c] or [c].
const void* VectorOf(const at::Tensor& vectors, int64_t image) {
  return static_cast<const char*>(vectors.const_data_ptr()) + image * ImageStride(vectors) * vectors.element_size();
}

// Quantizes rows of the shape and type of x, fp32 or bf16. compute(part, to) writes those of a part to `to`.
template <typename Compute>
std::tuple<at::Tensor, at::Tensor> QuantizedParts(const at::Tensor& x, Isa isa, const Compute& compute) {
  const int64_t columns = x.size(-1), bytes = columns * x.element_size();
  const int64_t rows_of_image = x.dim() == 3 ? x.size(1) : x.numel() / columns;
  const at::Tensor codes = at::empty(x.sizes(), x.options().dtype(at::kByte));
  const at::Tensor scales = at::empty(x.sizes().slice(0, x.dim() - 1), x.options().dtype(at::kFloat));
  uint8_t* const to = codes.mutable_data_ptr<uint8_t>();
  float* const scale = scales.mutable_data_ptr<float>();
  const int64_t at_once = std::max<int64_t>(1, kCachedElements / columns), rows = scales.numel();
  ParallelFor(rows, std::max<int64_t>(1, kGrainElements / columns), [&](int64_t first, int64_t last) {
    const AlignedBuffer computed(at_once * bytes);
    RowPart part{.image = 0, .first = first, .count = 0};
    for (; part.first < last; part.first += part.count) {
      part.image = part.first / rows_of_image;
      part.count = std::min({at_once, last - part.first, (part.image + 1) * rows_of_image - part.first});
      compute(part, computed.get());
      for (int64_t i = 0; i < part.count; ++i) {
        const int64_t row = part.first + i;
        const bool planted = base::Planted("folded_neighbours_scale");
        scale[planted ? (row + 1) % rows : row] = ElementwiseFor(isa).quantize_row(
            ElementOf(x), columns, static_cast<const char*>(computed.get()) + i * bytes, to + row * columns);
      }
    }
  });
  return {codes, scales};
}

// x *= factor, rounded as at::mul rounds.
void MultiplyRow(const at::Tensor& like, void* row, const void* factor) {
  const auto multiply = [channels = like.size(-1)](auto* x, const auto* by) {
    for (int64_t c = 0; c < channels; ++c) x[c] = x[c] * by[c];
  };
  if (like.scalar_type() == at::kFloat) return multiply(static_cast<float*>(row), static_cast<const float*>(factor));
  multiply(static_cast<at::BFloat16*>(row), static_cast<const at::BFloat16*>(factor));
}

// Returns [rows, c] with adjacent channels, without a copy for a part of each row of a wider product.
at::Tensor FlatRows(const at::Tensor& x) {
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  return rows.stride(1) == 1 ? rows : rows.contiguous();
}
const void* StridedRowAt(const at::Tensor& rows, int64_t row) {
  return static_cast<const char*>(rows.const_data_ptr()) + row * rows.stride(0) * rows.element_size();
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> QuantizedLayerNorm(const at::Tensor& x, const std::optional<at::Tensor>& weight,
                                                      const at::Tensor& shift, const std::optional<at::Tensor>& scale,
                                                      double eps, Isa isa) {
  const bool by_image = scale.has_value();
  if (!IsNarrow(x) || x.dim() != 3 || x.numel() == 0 || !IsModulation(shift, x) ||
      !(by_image ? IsModulation(*scale, x) : IsChannels(*weight, x))) {
    return QuantizeActivations(
        by_image ? LayerNormModulate(x, shift, *scale, eps, isa) : LayerNormShift(x, *weight, shift, eps, isa), isa);
  }
  const at::Tensor in = x.contiguous();
  const std::pair<at::Tensor, at::Tensor> norm = WithEqualStrides(shift, by_image ? *scale : weight->expand_as(shift));
  return QuantizedParts(in, isa, [&](const RowPart& part, void* to) {
    ElementwiseFor(isa).layer_norm_modulate(ElementOf(in), KernelRows(part, in.size(-1)), RowAt(in, part.first),
                                            VectorOf(norm.first, part.image), VectorOf(norm.second, part.image),
                                            by_image ? 1 : 0, static_cast<float>(eps), to);
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> QuantizedResidualNorm(
    const at::Tensor& x, const std::optional<at::Tensor>& gate, const at::Tensor& y,
    const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& shift, const std::optional<at::Tensor>& scale, double eps, Isa isa) {
  const std::optional<ResidualNormVectors> vectors = ResidualNormVectorsOf(x, gate, y, weight, bias, shift, scale);
  if (!vectors) {
    const auto [sum, normalised] = GatedResidualNormModulate(x, gate, y, weight, bias, shift, scale, eps, isa);
    const auto [codes, scales] = QuantizeActivations(normalised, isa);
    return {sum, codes, scales};
  }
  const at::Tensor in = x.contiguous(), addend = y.contiguous(), sum = at::empty_like(in);
  const auto& [by_image, gates, norm] = *vectors;
  const ElementwiseKernels& kernels = ElementwiseFor(isa);
  const auto [codes, scales] = QuantizedParts(in, isa, [&](const RowPart& part, void* to) {
    const Rows rows = KernelRows(part, in.size(-1));
    kernels.gated_residual(ElementOf(in), rows, RowAt(in, part.first), VectorOf(gates, part.image),
                           RowAt(addend, part.first), MutableRowAt(sum, part.first));
    kernels.layer_norm_modulate(ElementOf(in), rows, RowAt(sum, part.first), VectorOf(norm.first, part.image),
                                VectorOf(norm.second, part.image), by_image ? 1 : 0, static_cast<float>(eps), to);
  });
  return {sum, codes, scales};
}

std::tuple<at::Tensor, at::Tensor> QuantizedRmsNorm(const at::Tensor& x, const at::Tensor& weight,
                                                    const std::optional<at::Tensor>& factor, double eps, Isa isa) {
  if (!IsNarrow(x) || x.dim() != 3 || x.numel() == 0 || !IsChannels(weight, x)) {
    const at::Tensor normalised = RmsNorm(x, weight, eps, isa);
    return QuantizeActivations(factor.has_value() ? normalised * factor->unsqueeze(1) : normalised, isa);
  }
  const at::Tensor in = x.contiguous(), row_weight = weight.contiguous();
  const at::Tensor factors = factor.has_value() ? factor->contiguous() : at::Tensor();
  return QuantizedParts(in, isa, [&](const RowPart& part, void* to) {
    ElementwiseFor(isa).rms_norm(ElementOf(in), KernelRows(part, in.size(-1)), RowAt(in, part.first),
                                 row_weight.const_data_ptr(), static_cast<float>(eps), to);
    for (int64_t i = 0; factors.defined() && i < part.count; ++i) {
      MultiplyRow(in, static_cast<char*>(to) + i * in.size(-1) * in.element_size(), VectorOf(factors, part.image));
    }
  });
}

std::tuple<at::Tensor, at::Tensor> QuantizedGeluTanh(const at::Tensor& x, Isa isa) {
  if (!IsNarrow(x) || x.numel() == 0) return QuantizeActivations(GeluTanh(x, isa), isa);
  const at::Tensor rows = FlatRows(x);
  return QuantizedParts(x, isa, [&](const RowPart& part, void* to) {
    for (int64_t i = 0; i < part.count; ++i) {
      ElementwiseFor(isa).gelu_tanh(ElementOf(x), x.size(-1), StridedRowAt(rows, part.first + i),
                                    static_cast<char*>(to) + i * x.size(-1) * x.element_size());
    }
  });
}

std::tuple<at::Tensor, at::Tensor> QuantizedSwiGlu(const at::Tensor& gate, const at::Tensor& value, Isa isa) {
  if (!IsNarrow(gate) || gate.numel() == 0) return QuantizeActivations(SwiGlu(gate, value, isa), isa);
  const at::Tensor gates = FlatRows(gate), values = FlatRows(value);
  return QuantizedParts(gate, isa, [&](const RowPart& part, void* to) {
    for (int64_t i = 0; i < part.count; ++i) {
      ElementwiseFor(isa).swiglu(ElementOf(gate), gate.size(-1), StridedRowAt(gates, part.first + i),
                                 StridedRowAt(values, part.first + i),
                                 static_cast<char*>(to) + i * gate.size(-1) * gate.element_size());
    }
  });
}

}  // namespace tessera::kernels::cpu
