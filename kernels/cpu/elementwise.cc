#include "kernels/cpu/elementwise.h"

#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/reference.h"

namespace tessera::cpu {

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

constexpr int64_t kGrainElements = 32768;

bool IsNarrow(const at::Tensor& x) { return x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16; }

Element ElementOf(const at::Tensor& x) { return x.scalar_type() == at::kFloat ? Element::kFloat : Element::kBf16; }

// A vector per batch entry, of x's type and with contiguous channels, as Rows expects it.
bool IsModulation(const at::Tensor& vector, const at::Tensor& x) {
  return vector.dim() == 2 && vector.scalar_type() == x.scalar_type() && vector.size(0) == x.size(0) &&
         vector.size(1) == x.size(2);
}

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

at::Tensor LayerNormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps,
                             Isa isa) {
  if (!IsNarrow(x) || x.dim() != 3 || x.numel() == 0 || !IsModulation(shift, x) || !IsModulation(scale, x)) {
    return reference::LayerNormModulate(x, shift, scale, eps);
  }
  const at::Tensor in = x.contiguous();
  const bool same_strides = shift.stride(1) == 1 && shift.strides() == scale.strides();
  const at::Tensor row_shift = same_strides ? shift : shift.contiguous();
  const at::Tensor row_scale = same_strides ? scale : scale.contiguous();
  at::Tensor out = at::empty_like(in);
  ForRows(in, row_shift.stride(0), [&](const Rows& rows) {
    ElementwiseFor(isa).layer_norm_modulate(ElementOf(x), rows, in.const_data_ptr(), row_shift.const_data_ptr(),
                                            row_scale.const_data_ptr(), static_cast<float>(eps),
                                            out.mutable_data_ptr());
  });
  return out;
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

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps, Isa isa) {
  if (!IsNarrow(x) || x.dim() < 2 || x.numel() == 0 || weight.dim() != 1 || weight.size(0) != x.size(-1) ||
      weight.scalar_type() != x.scalar_type()) {
    return reference::RmsNorm(x, weight, eps);
  }
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

void GeluTanhInto(const at::Tensor& in, const at::Tensor& out, Isa isa) {
  const char* from = static_cast<const char*>(in.const_data_ptr());
  char* to = static_cast<char*>(out.mutable_data_ptr());
  const int64_t size = in.element_size();
  ParallelFor(in.numel(), kGrainElements, [&](int64_t first, int64_t last) {
    ElementwiseFor(isa).gelu_tanh(ElementOf(in), last - first, from + first * size, to + first * size);
  });
}

}  // namespace

at::Tensor GeluTanh(const at::Tensor& x, Isa isa) {
  if (!IsNarrow(x)) return reference::GeluTanh(x);
  const at::Tensor in = x.contiguous();
  at::Tensor out = at::empty_like(in);
  GeluTanhInto(in, out, isa);
  return out;
}

at::Tensor& GeluTanhInPlace(at::Tensor& x, Isa isa) {
  if (!IsNarrow(x) || !x.is_contiguous()) return at::gelu_(x, "tanh");
  GeluTanhInto(x, x, isa);
  return x;
}

}  // namespace tessera::cpu
