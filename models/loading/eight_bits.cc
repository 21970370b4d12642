#include "models/loading/eight_bits.h"

#include "models/precision.h"

namespace tessera::models {
namespace {

constexpr double kLargest = 127;

}  // namespace

ParamTable::FormOf InEightBits() {
  return [](const ParamSpec& spec) {
    return spec.is_looked_up ? std::nullopt : std::optional(QuantForm{.type = kernels::QuantType::kInt8});
  };
}

ParamTable::FormOf InStorage(control::WeightStorage storage) {
  const kernels::QuantType type = storage == control::WeightStorage::kFp8    ? kernels::QuantType::kF8E4M3
                                  : storage == control::WeightStorage::kQ8_0 ? kernels::QuantType::kQ8_0
                                                                             : kernels::QuantType::kInt8;
  return [type](const ParamSpec& spec) -> std::optional<QuantForm> {
    if (spec.is_looked_up || spec.shape.size() != 2 || spec.shape[1] % kernels::BlockOf(type).values != 0)
      return std::nullopt;
    return QuantForm{.type = type};
  };
}

at::Tensor ScalesOf(const at::Tensor& largest) {
  const at::Tensor scales = (largest.to(at::kDouble) / kLargest).to(at::kFloat).unsqueeze(1);
  return at::where(scales > 0, scales, at::ones_like(scales));
}

at::Tensor ToEightBits(const at::Tensor& rows, const at::Tensor& scales) {
  const at::ScalarType wide = AccumulationType(rows.scalar_type());
  return (rows.to(wide) / scales.to(wide)).round_().clamp_(-kLargest, kLargest).to(at::kChar);
}

at::Tensor FromEightBits(const at::Tensor& values, const at::Tensor& scales, at::ScalarType dtype) {
  const at::ScalarType wide = AccumulationType(dtype);
  return values.view(at::kChar).to(wide).mul_(scales.to(wide)).to(dtype);
}

}  // namespace tessera::models
