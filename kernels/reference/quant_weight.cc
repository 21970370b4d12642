#include "kernels/reference/quant_weight.h"

#include "kernels/reference/operators.h"

namespace tessera::kernels {

void CheckQuantWeight(const QuantWeight& weight, const char* what) {
  const QuantBlock block = BlockOf(weight.type);
  TORCH_CHECK(weight.values.dim() == 2 && weight.values.element_size() == 1 && weight.values.stride(1) == 1, what,
              ": the values of a quantized weight must be rows of bytes");
  TORCH_CHECK(weight.in % block.values == 0 && weight.values.size(1) == RowBytes(weight.type, weight.in), what,
              ": rows of ", weight.values.size(1), " bytes do not hold ", weight.in, " values of ",
              QuantTypeName(weight.type));
  const auto is_float = [&](const at::Tensor& x) {
    return x.defined() && x.scalar_type() == at::kFloat && x.is_contiguous() && x.device() == weight.values.device();
  };
  const int64_t out = weight.out();
  if (HasOwnScales(weight.type)) return;
  if (weight.type != QuantType::kNibble) {
    TORCH_CHECK(is_float(weight.scales) && weight.scales.numel() == out, what, ": there must be a scale for each row");
    return;
  }
  TORCH_CHECK(weight.scale_block > 0 && weight.scale_block % block.values == 0 && weight.in % weight.scale_block == 0,
              what, ": rows of ", weight.in, " values are not whole blocks of ", weight.scale_block);
  TORCH_CHECK(is_float(weight.scales) && weight.scales.numel() == out * (weight.in / weight.scale_block), what,
              ": there must be a scale for each block");
  TORCH_CHECK(is_float(weight.table) && weight.table.numel() == 16, what, ": there must be sixteen values of codes");
}

namespace reference {

at::Tensor WidenWeight(const QuantWeight& weight, at::ScalarType dtype) {
  if (weight.type == QuantType::kInt8) {
    return (weight.values.view(at::kChar).to(at::kFloat) * weight.scales.view({-1, 1})).to(dtype);
  }
  // The other forms are defined on the host.
  QuantWeight host = weight;
  for (at::Tensor* tensor : {&host.values, &host.scales, &host.table}) {
    if (tensor->defined()) *tensor = tensor->cpu();
  }
  const at::Tensor wide = at::empty({weight.out(), weight.in}, at::kFloat);
  const QuantRows rows = RowsOf(host);
  for (int64_t row = 0; row < weight.out(); ++row) {
    ReferenceWiden(RunOf(rows, row, 0, weight.in), wide.mutable_data_ptr<float>() + row * weight.in);
  }
  return wide.to(weight.values.device(), dtype);
}

at::Tensor QuantProduct(const at::Tensor& x, const QuantWeight& weight, const std::optional<at::Tensor>& bias) {
  return LinearProduct(x, WidenWeight(weight, x.scalar_type()), bias);
}

std::tuple<at::Tensor, at::Tensor> QuantizeActivations(const at::Tensor& x) {
  const at::Tensor rows = x.to(at::kCPU, at::kFloat).contiguous();
  const int64_t columns = rows.size(-1);
  const at::Tensor codes = at::empty(rows.sizes(), at::kByte);
  const at::Tensor scales = at::empty(rows.sizes().slice(0, rows.dim() - 1), at::kFloat);
  for (int64_t row = 0; row < scales.numel(); ++row) {
    ReferenceQuantizeActivations(rows.const_data_ptr<float>() + row * columns, columns,
                                 codes.mutable_data_ptr<uint8_t>() + row * columns,
                                 scales.mutable_data_ptr<float>() + row);
  }
  return {codes.to(x.device()), scales.to(x.device())};
}

at::Tensor Fp8Product(const at::Tensor& codes, const at::Tensor& row_scales, const QuantWeight& weight,
                      const std::optional<at::Tensor>& bias, at::ScalarType dtype) {
  const auto numbers = [](const at::Tensor& bytes) {
    const at::Tensor rows = bytes.reshape({-1, bytes.size(-1)});
    return WidenWeight({.type = QuantType::kF8E4M3,
                        .values = rows,
                        .scales = at::ones({rows.size(0), 1}, rows.options().dtype(at::kFloat)),
                        .in = rows.size(1)},
                       at::kFloat)
        .view(bytes.sizes());
  };
  at::Tensor y = LinearProduct(numbers(codes), numbers(weight.values), std::nullopt);
  y = y * row_scales.unsqueeze(-1) * weight.scales.view({-1});
  if (bias.has_value()) y = y + bias->to(at::kFloat);
  return y.to(dtype);
}

}  // namespace reference
}  // namespace tessera::kernels
