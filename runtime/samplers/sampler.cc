#include "runtime/samplers/sampler.h"

#include <algorithm>

#include "base/planted.h"
#include "runtime/samplers/solvers.h"

namespace tessera::runtime {

double Sampler::timestep(int step) const {
  TORCH_CHECK(step >= 0 && step < num_steps(), "the sampler has ", num_steps(), " steps and none of number ", step);
  if (base::Planted("timestep_off_by_one")) return schedule_.timesteps[std::min(step + 1, num_steps() - 1)];
  return schedule_.timesteps[step];
}

at::Tensor Sampler::Step(const at::Tensor& sample, const at::Tensor& prediction, const at::Tensor& noise) {
  TORCH_CHECK(!done(), "the sampler has done all of its ", num_steps(), " steps");
  TORCH_CHECK(prediction.sizes() == sample.sizes(), "the prediction's shape ", prediction.sizes(),
              " is not the sample's, ", sample.sizes());
  const at::ScalarType dtype = sample.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor drawn;
  if (needs_noise()) {
    TORCH_CHECK(noise.defined() && noise.sizes() == sample.sizes(), "this step needs noise of the sample's shape ",
                sample.sizes());
    drawn = noise.to(dtype);
  }
  at::Tensor next = Advance(sample.to(dtype), prediction.to(dtype), drawn);
  ++step_;
  return next.to(sample.scalar_type());
}

at::Tensor PredictedSample(PredictionType type, const at::Tensor& sample, const at::Tensor& prediction,
                           const NoiseLevel& level) {
  switch (type) {
    case PredictionType::kEpsilon:
      return (sample - prediction * level.sigma) / level.alpha;
    case PredictionType::kSample:
      return prediction;
    case PredictionType::kVelocity:
      return sample * level.alpha - prediction * level.sigma;
    case PredictionType::kFlow:
      break;
  }
  return sample - prediction * level.sigma;
}

at::Tensor PredictedNoise(PredictionType type, const at::Tensor& sample, const at::Tensor& prediction,
                          const NoiseLevel& level) {
  switch (type) {
    case PredictionType::kEpsilon:
      return prediction;
    case PredictionType::kSample:
      return (sample - prediction * level.alpha) / level.sigma;
    case PredictionType::kVelocity:
      return prediction * level.alpha + sample * level.sigma;
    case PredictionType::kFlow:
      break;
  }
  return sample + prediction * (1.0 - level.sigma);
}

at::Tensor DynamicThreshold(const at::Tensor& sample, double ratio, double max_value) {
  const at::Tensor rows = sample.flatten(1);
  const at::Tensor sorted = std::get<0>(rows.abs().sort(/*dim=*/1));
  const double rank = ratio * static_cast<double>(rows.size(1) - 1);
  const int64_t low = static_cast<int64_t>(rank);
  const int64_t high = std::min(low + 1, rows.size(1) - 1);
  at::Tensor limit = at::lerp(sorted.narrow(1, low, 1), sorted.narrow(1, high, 1), rank - static_cast<double>(low));
  limit = limit.clamp(1.0, max_value);  // [batch, 1]
  return (rows.clamp(-limit, limit) / limit).view(sample.sizes());
}

}  // namespace tessera::runtime
