#include "kernels/cpu/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_vectors.h"
#include "kernels/reference/operators.h"

namespace tessera::kernels::cpu {

const ElementwiseKernels& ElementwiseFor(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return kElementwiseBaseline;
    case Isa::kAvx2:
      return kElementwiseAvx2;
    case Isa::kAvx512:
    case Isa::kAvx512Bf16:
    case Isa::kAmx:
      break;
  }
  return kElementwiseAvx512;
}

namespace {

// Runs body on ranges of rows of the contiguous [b, n, c] tensor x.
template <typename Body>
void ForRows(const at::Tensor& x, int64_t vector_stride, const Body& body) {
  const int64_t channels = x.size(-1);
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, channels));
  ParallelFor(x.numel() / std::max<int64_t>(1, channels), grain, [&](int64_t first, int64_t last) {
    body(Rows{.first = first,
              .last = last,
              .channels = channels,
              .rows_per_batch = x.size(-2),
              .vector_stride = vector_stride});
  });
}

}  // namespace

namespace {

// layer_norm(x) * (offset + scale) + shift, with one shift and scale per image or one for all.
at::Tensor NormOfRows(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, float offset, double eps,
                      Isa isa) {
  const at::Tensor in = x.contiguous();
  const std::pair<at::Tensor, at::Tensor> norm = WithEqualStrides(shift, scale);
  at::Tensor out = at::empty_like(in);
  ForRows(in, ImageStride(norm.first), [&](const Rows& rows) {
    ElementwiseFor(isa).layer_norm_modulate(ElementOf(x), rows, in.const_data_ptr(), norm.first.const_data_ptr(),
                                            norm.second.const_data_ptr(), offset, static_cast<float>(eps),
                                            out.mutable_data_ptr());
  });
  return out;
}

}  // namespace

at::Tensor LayerNormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps,
                             Isa isa) {
  if (!IsNarrow(x) || x.dim() != 3 || x.numel() == 0 || !IsModulation(shift, x) || !IsModulation(scale, x)) {
    return reference::LayerNormModulate(x, shift, scale, eps);
  }
  return NormOfRows(x, shift, scale, /*offset=*/1, eps, isa);
}

at::Tensor LayerNormShift(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& shift, double eps, Isa isa) {
  if (!IsNarrow(x) || x.dim() != 3 || x.numel() == 0 || !IsChannels(weight, x) || !IsModulation(shift, x)) {
    return reference::LayerNormShift(x, weight, shift, eps);
  }
  return NormOfRows(x, shift, weight.expand_as(shift), /*offset=*/0, eps, isa);
}

at::Tensor GatedResidual(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y, Isa isa) {
  if (!IsNarrow(x) || x.dim() != 3 || x.numel() == 0 || !IsModulation(gate, x) || !x.sizes().equals(y.sizes()) ||
      y.scalar_type() != x.scalar_type()) {
    return reference::GatedResidual(x, gate, y);
  }
  const at::Tensor in = x.contiguous();
  const at::Tensor addend = y.contiguous();
  const at::Tensor row_gate = gate.stride(1) == 1 ? gate : gate.contiguous();
  at::Tensor out = at::empty_like(in);
  ForRows(in, row_gate.stride(0), [&](const Rows& rows) {
    ElementwiseFor(isa).gated_residual(ElementOf(x), rows, in.const_data_ptr(), row_gate.const_data_ptr(),
                                       addend.const_data_ptr(), out.mutable_data_ptr());
  });
  return out;
}

// Runs the two kernels in turn on so few rows that the second finds them in the cache.
std::tuple<at::Tensor, at::Tensor> GatedResidualNormModulate(
    const at::Tensor& x, const std::optional<at::Tensor>& gate, const at::Tensor& y,
    const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& shift, const std::optional<at::Tensor>& scale, double eps, Isa isa) {
  const std::optional<ResidualNormVectors> vectors = ResidualNormVectorsOf(x, gate, y, weight, bias, shift, scale);
  if (!vectors) {
    return reference::GatedResidualNormModulate(x, gate, y, weight, bias, shift, scale, eps);
  }
  const at::Tensor in = x.contiguous(), addend = y.contiguous();
  const auto& [by_image, gates, norm] = *vectors;
  at::Tensor sum = at::empty_like(in), normalized = at::empty_like(in);
  const ElementwiseKernels& kernels = ElementwiseFor(isa);
  const int64_t at_once = std::max<int64_t>(1, kCachedElements / x.size(2));
  ForRows(in, ImageStride(gates), [&](const Rows& rows) {
    for (int64_t first = rows.first; first < rows.last; first += at_once) {
      Rows part = rows;
      part.first = first;
      part.last = std::min(first + at_once, rows.last);
      kernels.gated_residual(ElementOf(x), part, in.const_data_ptr(), gates.const_data_ptr(), addend.const_data_ptr(),
                             sum.mutable_data_ptr());
      part.vector_stride = ImageStride(norm.first);
      kernels.layer_norm_modulate(ElementOf(x), part, sum.const_data_ptr(), norm.first.const_data_ptr(),
                                  norm.second.const_data_ptr(), by_image ? 1 : 0, static_cast<float>(eps),
                                  normalized.mutable_data_ptr());
    }
  });
  return {sum, normalized};
}

namespace {

// Sums over the last dimension in one fixed order, which at::mean does not guarantee.
at::Tensor RmsNormOfDoubles(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor in = x.contiguous(), factors = weight.contiguous();
  at::Tensor out = at::empty_like(in);
  const int64_t channels = x.size(-1), rows = in.numel() / channels;
  const double* from = in.const_data_ptr<double>();
  const double* factor = factors.const_data_ptr<double>();
  double* to = out.mutable_data_ptr<double>();
  ParallelFor(rows, std::max<int64_t>(1, kGrainElements / channels), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const double* value = from + row * channels;
      double squares = 0;
      for (int64_t c = 0; c < channels; ++c) squares += value[c] * value[c];
      const double reciprocal = 1 / std::sqrt(squares / static_cast<double>(channels) + eps);
      for (int64_t c = 0; c < channels; ++c) to[row * channels + c] = value[c] * reciprocal * factor[c];
    }
  });
  return out;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> QuantizeActivations(const at::Tensor& x, Isa isa) {
  const at::Tensor rows = (IsNarrow(x) ? x : x.to(at::kFloat)).contiguous();
  const int64_t columns = rows.size(-1), size = rows.element_size();
  const at::Tensor codes = at::empty(rows.sizes(), rows.options().dtype(at::kByte));
  const at::Tensor scales = at::empty(rows.sizes().slice(0, rows.dim() - 1), rows.options().dtype(at::kFloat));
  const char* const from = static_cast<const char*>(rows.const_data_ptr());
  uint8_t* const to = codes.mutable_data_ptr<uint8_t>();
  float* const scale = scales.mutable_data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, columns));
  ParallelFor(scales.numel(), grain, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t at = row * columns;
      scale[row] = ElementwiseFor(isa).quantize_row(ElementOf(rows), columns, from + at * size, to + at);
    }
  });
  return {codes, scales};
}

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps, Isa isa) {
  if (x.dim() < 1 || x.numel() == 0 || weight.dim() != 1 || weight.size(0) != x.size(-1) ||
      weight.scalar_type() != x.scalar_type()) {
    return reference::RmsNorm(x, weight, eps);
  }
  if (x.scalar_type() == at::kDouble) return RmsNormOfDoubles(x, weight, eps);
  if (!IsNarrow(x) || x.dim() < 2) return reference::RmsNorm(x, weight, eps);
  const at::Tensor in = x.contiguous();
  const at::Tensor row_weight = weight.contiguous();
  at::Tensor out = at::empty_like(in);
  ForRows(in, 0, [&](const Rows& rows) {
    ElementwiseFor(isa).rms_norm(ElementOf(x), rows, in.const_data_ptr(), row_weight.const_data_ptr(),
                                 static_cast<float>(eps), out.mutable_data_ptr());
  });
  return out;
}

namespace {

// Elementwise functions of LibTorch process the last elements of a call, and those at the boundaries between threads,
// by a different code path that rounds differently. Here each call sees a fixed number of elements, all on the same
// path.
constexpr int64_t kSpan = 8192;
constexpr int64_t kWholeVectors = 64;  // a multiple of every vector's lanes and of LibTorch's unrolling

template <typename Function>
at::Tensor BySpans(const at::Tensor& x, const Function& function) {
  const at::Tensor in = x.contiguous();
  at::Tensor out = at::empty_like(in);
  const int64_t count = in.numel(), size = in.element_size();
  const char* from = static_cast<const char*>(in.const_data_ptr());
  char* to = static_cast<char*>(out.mutable_data_ptr());
  ParallelFor((count + kSpan - 1) / kSpan, 1, [&](int64_t first, int64_t last) {
    for (int64_t span = first; span < last; ++span) {
      const int64_t begin = span * kSpan, length = std::min(kSpan, count - begin);
      const int64_t padded = (length + kWholeVectors - 1) / kWholeVectors * kWholeVectors;
      const at::Tensor values = at::zeros({padded}, in.options());
      std::memcpy(values.mutable_data_ptr(), from + begin * size, static_cast<size_t>(length * size));
      const at::Tensor results = function(values);
      std::memcpy(to + begin * size, results.const_data_ptr(), static_cast<size_t>(length * size));
    }
  });
  return out;
}

// Runs body(count, from, to) on ranges of elements of two contiguous tensors.
template <typename Body>
void ForSpans(const at::Tensor& in, const at::Tensor& out, const Body& body) {
  const char* from = static_cast<const char*>(in.const_data_ptr());
  char* to = static_cast<char*>(out.mutable_data_ptr());
  const int64_t size = in.element_size();
  ParallelFor(in.numel(), kGrainElements,
              [&](int64_t first, int64_t last) { body(last - first, from + first * size, to + first * size); });
}

void GeluTanhInto(const at::Tensor& in, const at::Tensor& out, Isa isa) {
  ForSpans(in, out, [&](int64_t count, const char* from, char* to) {
    ElementwiseFor(isa).gelu_tanh(ElementOf(in), count, from, to);
  });
}

}  // namespace

at::Tensor GeluTanh(const at::Tensor& x, Isa isa) {
  if (!IsNarrow(x)) return BySpans(x, [](const at::Tensor& span) { return at::gelu(span, "tanh"); });
  const at::Tensor in = x.contiguous();
  at::Tensor out = at::empty_like(in);
  GeluTanhInto(in, out, isa);
  return out;
}

at::Tensor& GeluTanhInPlace(at::Tensor& x, Isa isa) {
  if (!IsNarrow(x) || !x.is_contiguous()) return x = GeluTanh(x, isa);
  GeluTanhInto(x, x, isa);
  return x;
}

at::Tensor Silu(const at::Tensor& x, Isa isa) {
  if (!IsNarrow(x)) return BySpans(x, [](const at::Tensor& span) { return at::silu(span); });
  const at::Tensor in = x.contiguous();
  at::Tensor out = at::empty_like(in);
  ForSpans(in, out, [&](int64_t count, const char* from, char* to) {
    ElementwiseFor(isa).silu(ElementOf(in), count, from, to);
  });
  return out;
}

// Each call of the kernel sees one row, so the halves of a product's rows are read where they are.
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& value, Isa isa) {
  if (!IsNarrow(gate)) return Silu(gate, isa) * value;
  if (gate.numel() == 0) return at::empty_like(gate, at::MemoryFormat::Contiguous);
  const int64_t channels = gate.dim() == 0 ? 1 : gate.size(-1), size = gate.element_size();
  const auto rows_of = [&](const at::Tensor& x) {
    const at::Tensor rows = x.reshape({-1, channels});
    return rows.stride(1) == 1 ? rows : rows.contiguous();
  };
  const at::Tensor gates = rows_of(gate), values = rows_of(value);
  at::Tensor out = at::empty(gate.sizes(), gate.options());
  const char *from = static_cast<const char*>(gates.const_data_ptr()),
             *factor = static_cast<const char*>(values.const_data_ptr());
  char* to = static_cast<char*>(out.mutable_data_ptr());
  const int64_t grain = std::max<int64_t>(1, kGrainElements / channels);
  ParallelFor(gates.size(0), grain, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      ElementwiseFor(isa).swiglu(ElementOf(gate), channels, from + row * gates.stride(0) * size,
                                 factor + row * values.stride(0) * size, to + row * channels * size);
    }
  });
  return out;
}

at::Tensor Gelu(const at::Tensor& x) {
  return BySpans(x, [](const at::Tensor& span) { return at::gelu(span); });
}
at::Tensor Sigmoid(const at::Tensor& x) {
  return BySpans(x, [](const at::Tensor& span) { return at::sigmoid(span); });
}
at::Tensor Cos(const at::Tensor& x) {
  return BySpans(x, [](const at::Tensor& span) { return at::cos(span); });
}
at::Tensor Sin(const at::Tensor& x) {
  return BySpans(x, [](const at::Tensor& span) { return at::sin(span); });
}

at::Tensor WithRowsInOrder(const at::Tensor& x) {
  return x.stride(3) == 1 && x.stride(2) == x.size(3) ? x : x.contiguous();
}

at::Tensor ChannelAffine(const at::Tensor& x, const at::Tensor& factor, const at::Tensor& offset, bool silu, Isa isa) {
  const at::ScalarType accumulation = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if ((!IsNarrow(x) && x.scalar_type() != at::kDouble) || x.dim() != 4 || x.numel() == 0) {
    return reference::ChannelAffine(x, factor, offset, silu);
  }
  const int64_t channels = x.size(1), planes = x.size(0) * channels, pixels = x.size(2) * x.size(3);
  TORCH_CHECK(factor.numel() == planes && offset.numel() == planes,
              "channel_affine: factor and offset must be [batch, channels]");
  const at::Tensor in = WithRowsInOrder(x);
  const at::Tensor factors = factor.to(accumulation).contiguous(), offsets = offset.to(accumulation).contiguous();
  at::Tensor out = at::empty(x.sizes(), x.options().memory_format(at::MemoryFormat::Contiguous));
  const int64_t size = x.element_size();
  ParallelFor(planes, std::max<int64_t>(1, kGrainElements / pixels), [&](int64_t first, int64_t last) {
    for (int64_t plane = first; plane < last; ++plane) {
      const char* from = static_cast<const char*>(in.const_data_ptr()) +
                         (plane / channels * in.stride(0) + plane % channels * in.stride(1)) * size;
      char* to = static_cast<char*>(out.mutable_data_ptr()) + plane * pixels * size;
      if (accumulation == at::kFloat) {
        ElementwiseFor(isa).affine(ElementOf(x), pixels, factors.const_data_ptr<float>()[plane],
                                   offsets.const_data_ptr<float>()[plane], silu, from, to);
        continue;
      }
      const double a = factors.const_data_ptr<double>()[plane], b = offsets.const_data_ptr<double>()[plane];
      for (int64_t i = 0; i < pixels; ++i) {
        const double y = reinterpret_cast<const double*>(from)[i] * a + b;
        reinterpret_cast<double*>(to)[i] = silu ? y / (1 + std::exp(-y)) : y;
      }
    }
  });
  return out;
}

namespace {

// Statistics of some of the values: their number, mean and sum of squared differences from the mean.
struct Moments {
  double count = 0, mean = 0, squares = 0;

  // Combines two parts (Chan et al., 1979).
  void Merge(const Moments& other) {
    const double sum = count + other.count, delta = other.mean - mean;
    mean += delta * (other.count / sum);
    squares += other.squares + delta * delta * (count * other.count / sum);
    count = sum;
  }
};

Moments MomentsOf(const at::Tensor& x, const char* from, int64_t count, Isa isa) {
  if (x.scalar_type() != at::kDouble) {
    float mean = 0, squares = 0;
    ElementwiseFor(isa).moments(ElementOf(x), count, from, &mean, &squares);
    return {static_cast<double>(count), mean, squares};
  }
  Moments moments{.count = static_cast<double>(count)};
  const double* values = reinterpret_cast<const double*>(from);
  for (int64_t i = 0; i < count; ++i) moments.mean += values[i];
  moments.mean /= moments.count;
  for (int64_t i = 0; i < count; ++i) {
    moments.squares += (values[i] - moments.mean) * (values[i] - moments.mean);
  }
  return moments;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> GroupMoments(const at::Tensor& x, int64_t groups, Isa isa) {
  TORCH_CHECK(x.dim() == 4 && x.size(1) % groups == 0 && (IsNarrow(x) || x.scalar_type() == at::kDouble),
              "group_moments: ", x.sizes(), " ", x.scalar_type(), " has no ", groups, " groups of channels");
  const at::Tensor in = WithRowsInOrder(x);
  const int64_t b = x.size(0), per_group = x.size(1) / groups, pixels = x.size(2) * x.size(3), size = x.element_size();
  at::Tensor means = at::zeros({b, groups}, x.options().dtype(at::kDouble)), squares = at::zeros_like(means);
  if (x.numel() == 0) return {means, squares};
  constexpr int64_t kPart = 4096;  // remains in the cache for the second pass
  ParallelFor(b * groups, 1, [&](int64_t first, int64_t last) {
    for (int64_t group = first; group < last; ++group) {
      Moments all;
      for (int64_t c = 0; c < per_group; ++c) {
        const char* plane = static_cast<const char*>(in.const_data_ptr()) +
                            (group / groups * in.stride(0) + (group % groups * per_group + c) * in.stride(1)) * size;
        for (int64_t i = 0; i < pixels; i += kPart) {
          all.Merge(MomentsOf(in, plane + i * size, std::min(kPart, pixels - i), isa));
        }
      }
      means.mutable_data_ptr<double>()[group] = all.mean;
      squares.mutable_data_ptr<double>()[group] = all.squares;
    }
  });
  return {means, squares};
}

}  // namespace tessera::kernels::cpu
