#include "runtime/training/density.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera::runtime {

double Quantile(const DensityOptions& options, const LevelDraw& draw) {
  switch (options.scheme) {
    case WeightingScheme::kLogitNormal:
      return 1 / (1 + std::exp(-(options.logit_mean + options.logit_std * draw.normal)));
    case WeightingScheme::kMode: {
      const double u = draw.uniform, cosine = std::cos(std::numbers::pi * u / 2);
      return 1 - u - options.mode_scale * (cosine * cosine - 1 + u);
    }
    case WeightingScheme::kNone:
    case WeightingScheme::kSigmaSqrt:
    case WeightingScheme::kCosmap:
      break;
  }
  return draw.uniform;
}

double LevelWeight(WeightingScheme scheme, double sigma) {
  switch (scheme) {
    case WeightingScheme::kSigmaSqrt:
      return 1 / (sigma * sigma);
    case WeightingScheme::kCosmap:
      return 2 / (std::numbers::pi * (1 - 2 * sigma + 2 * sigma * sigma));
    case WeightingScheme::kNone:
    case WeightingScheme::kLogitNormal:
    case WeightingScheme::kMode:
      break;
  }
  return 1;
}

double ShiftLevel(double sigma, double shift) { return sigma * shift / (1 + (shift - 1) * sigma); }

FlowLevelTable::FlowLevelTable(const SamplerConfig& config) : schedule_(MakeFlowTrainingSchedule(config)) {
  const DynamicShift& shift = *config.Find<DynamicShift>();
  if (shift.use_dynamic_shifting) dynamic_ = shift;
}

FlowLevel FlowLevelTable::At(double quantile, int64_t tokens) const {
  const double levels = static_cast<double>(schedule_.sigmas.size());
  // A quantile of 1, or one outside [0, 1] from `mode` with a large scale, selects the last or the first level.
  const size_t index = static_cast<size_t>(std::clamp(std::floor(quantile * levels), 0.0, levels - 1));
  if (!dynamic_) return {.timestep = schedule_.timesteps[index], .sigma = schedule_.sigmas[index]};
  const double mu = DynamicShiftMu(*dynamic_, tokens);
  const double sigma =
      ShiftLevel(schedule_.sigmas[index], dynamic_->time_shift_type == TimeShiftType::kExponential ? std::exp(mu) : mu);
  return {.timestep = sigma * levels, .sigma = sigma};
}

}  // namespace tessera::runtime
