#include <algorithm>
#include <vector>

#include "kernels/cuda/on_device.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/tensor_views.h"
#include "kernels/cuda/widen.h"
#include "kernels/reference/quant_weight.h"

namespace tessera::kernels::cuda {
namespace {

// The weight exists in parts of at most so many bytes.
constexpr int64_t kMostPartBytes = int64_t{64} << 20;

// Widens rows [first, first + to.size(0)) of a weight into `to`, which is dense.
void WidenInto(const QuantWeight& weight, int64_t first, const at::Tensor& to) {
  const QuantRows rows = RowsOf(weight);
  const int64_t scales_of_row =
      weight.scales.defined() ? weight.scales.numel() / std::max<int64_t>(1, weight.out()) : 0;
  const WidenArguments arguments{.type = weight.type,
                                 .number = *ToNumber(to.scalar_type()),
                                 .rows = to.size(0),
                                 .columns = weight.in,
                                 .bytes = reinterpret_cast<const uint8_t*>(rows.bytes) + first * rows.row_bytes,
                                 .row_bytes = rows.row_bytes,
                                 .scales = rows.scales != nullptr ? rows.scales + first * scales_of_row : nullptr,
                                 .scale_block = weight.scale_block,
                                 .table = rows.table,
                                 .to = to.mutable_data_ptr()};
  OnDeviceOf(to, "tessera::widen_weight", [&](cudaStream_t stream) { return LaunchWiden(arguments, stream); });
}

}  // namespace

at::Tensor WidenWeight(const at::Tensor& values, const OptionalTensor& scales, const OptionalTensor& table,
                       int64_t type, int64_t in, int64_t scale_block, at::ScalarType dtype) {
  const QuantWeight weight = QuantWeightOf(values, scales, table, type, in, scale_block);
  const bool has_kernel = ToNumber(dtype).has_value();
  const at::Tensor wide = at::empty({weight.out(), in}, values.options().dtype(has_kernel ? dtype : at::kFloat));
  WidenInto(weight, 0, wide);
  return wide.to(dtype);
}

at::Tensor QuantProductInParts(const at::Tensor& x, const QuantWeight& weight, const OptionalTensor& bias,
                               int64_t most_part_bytes) {
  const int64_t out = weight.out(), in = weight.in;
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = out;
  const at::Tensor rows = x.reshape({-1, in}), product = at::empty({rows.size(0), out}, x.options());
  const int64_t most = std::max<int64_t>(1, most_part_bytes / std::max<int64_t>(1, in * x.element_size()));
  const at::Tensor part = at::empty({std::min(most, out), in}, x.options());
  for (int64_t first = 0; first < out; first += most) {
    const int64_t count = std::min(most, out - first);
    const at::Tensor wide = part.narrow(0, 0, count);
    at::Tensor columns = product.narrow(1, first, count);
    WidenInto(weight, first, wide);
    if (bias.has_value()) {
      at::addmm_out(columns, bias->narrow(0, first, count), rows, wide.t());
    } else {
      at::mm_out(columns, rows, wide.t());
    }
  }
  return product.view(shape);
}

at::Tensor QuantProduct(const at::Tensor& x, const at::Tensor& values, const OptionalTensor& scales,
                        const OptionalTensor& table, int64_t type, int64_t in, int64_t scale_block,
                        const OptionalTensor& bias) {
  const QuantWeight weight = QuantWeightOf(values, scales, table, type, in, scale_block);
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) == in, "quant_product: an input of ", x.sizes(), " does not fit a weight of [",
              weight.out(), ", ", in, "]");
  if (ToNumber(x.scalar_type())) return QuantProductInParts(x, weight, bias, kMostPartBytes);
  return at::linear(x, WidenWeight(values, scales, table, type, in, scale_block, x.scalar_type()), bias);
}

}  // namespace tessera::kernels::cuda
