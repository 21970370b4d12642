#include "runtime/samplers/forward_process.h"

#include <utility>
#include <vector>

namespace tessera::runtime {
namespace {

struct LevelTensors {
  at::Tensor alpha;  // [batch, 1, ...]
  at::Tensor sigma;
};

LevelTensors Broadcastable(const at::Tensor& x0, const at::Tensor& noise, std::span<const NoiseLevel> levels,
                           at::ScalarType dtype) {
  const int64_t batch = static_cast<int64_t>(levels.size());
  TORCH_CHECK(x0.dim() >= 1 && x0.size(0) == batch, "there are ", batch, " noise levels for samples of shape ",
              x0.sizes());
  TORCH_CHECK(noise.sizes() == x0.sizes(), "the noise's shape ", noise.sizes(), " is not the samples', ", x0.sizes());
  at::Tensor both = at::empty({2, batch}, at::kDouble);
  auto values = both.accessor<double, 2>();
  for (int64_t i = 0; i < batch; ++i) {
    values[0][i] = levels[i].alpha;
    values[1][i] = levels[i].sigma;
  }
  std::vector<int64_t> shape(x0.dim() + 1, 1);
  shape[0] = 2;
  shape[1] = batch;
  both = both.to(x0.device(), dtype).view(shape);
  return {both.select(0, 0), both.select(0, 1)};
}

at::ScalarType ComputeType(const at::Tensor& x0) { return x0.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

}  // namespace

at::Tensor AddNoise(const at::Tensor& x0, const at::Tensor& noise, std::span<const NoiseLevel> levels) {
  const at::ScalarType dtype = ComputeType(x0);
  const LevelTensors level = Broadcastable(x0, noise, levels, dtype);
  return (level.alpha * x0.to(dtype) + level.sigma * noise.to(dtype)).to(x0.scalar_type());
}

at::Tensor Velocity(const at::Tensor& x0, const at::Tensor& noise, std::span<const NoiseLevel> levels) {
  const at::ScalarType dtype = ComputeType(x0);
  const LevelTensors level = Broadcastable(x0, noise, levels, dtype);
  return (level.alpha * noise.to(dtype) - level.sigma * x0.to(dtype)).to(x0.scalar_type());
}

}  // namespace tessera::runtime
