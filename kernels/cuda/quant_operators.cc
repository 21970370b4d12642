#include <algorithm>
#include <vector>

#include "kernels/cuda/on_device.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/quantize_rows.h"
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

std::tuple<at::Tensor, at::Tensor> QuantizeActivations(const at::Tensor& x) {
  const at::Tensor rows = (ToNumber(x.scalar_type()) ? x : x.to(at::kFloat)).contiguous();
  const at::Tensor codes = at::empty(rows.sizes(), rows.options().dtype(at::kByte));
  const at::Tensor scales = at::empty(rows.sizes().slice(0, rows.dim() - 1), rows.options().dtype(at::kFloat));
  const QuantizeRowsArguments arguments{.number = *ToNumber(rows.scalar_type()),
                                        .rows = scales.numel(),
                                        .columns = rows.size(-1),
                                        .from = rows.const_data_ptr(),
                                        .row_stride = rows.size(-1),
                                        .codes = codes.mutable_data_ptr<uint8_t>(),
                                        .scales = scales.mutable_data_ptr<float>()};
  OnDeviceOf(rows, "tessera::quantize_activations",
             [&](cudaStream_t stream) { return LaunchQuantizeRows(arguments, stream); });
  return {codes, scales};
}

at::Tensor WidenedFp8Product(const at::Tensor& codes, const at::Tensor& row_scales, const at::Tensor& values,
                             const at::Tensor& scales, const OptionalTensor& bias, at::ScalarType dtype) {
  const int64_t in = codes.size(-1);
  const QuantWeight weight = QuantWeightOf(values, scales, {}, static_cast<int64_t>(QuantType::kF8E4M3), in, 0);
  const at::Tensor rows = codes.reshape({-1, in});
  const QuantWeight numbers = QuantWeightOf(rows, at::ones({rows.size(0), 1}, scales.options()), {},
                                            static_cast<int64_t>(QuantType::kF8E4M3), in, 0);
  const at::Tensor wide = at::empty(rows.sizes(), scales.options());
  WidenInto(numbers, 0, wide);
  at::Tensor y = QuantProductInParts(wide, weight, std::nullopt, kMostPartBytes);
  y.mul_(row_scales.reshape({-1, 1}));
  if (bias.has_value()) y.add_(bias->to(at::kFloat));
  std::vector<int64_t> shape = codes.sizes().vec();
  shape.back() = weight.out();
  return y.view(shape).to(dtype);
}

}  // namespace tessera::kernels::cuda
