#include "runtime/training/objective.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/samplers/forward_process.h"

namespace tessera::runtime {

absl::StatusOr<Objective> Objective::Create(const SamplerConfig& scheduler, const ObjectiveOptions& options) {
  if (IsFlow(scheduler) && scheduler.Find<FlowLevels>() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("scheduler_config.json: the class ", SamplerName(scheduler),
                                                   " has no levels of training; FlowMatchEulerDiscreteScheduler has"));
  }
  if (options.prediction_type && (*options.prediction_type == PredictionType::kFlow) != IsFlow(scheduler)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "train.prediction_type is \"", PredictionTypeName(*options.prediction_type), "\"; ",
        IsFlow(scheduler) ? "this model is trained by flow matching alone, for which it must be \"scheduler\""
                          : "for this model, which has a noise table, it must be \"epsilon\" or \"v_prediction\""));
  }
  const PredictionType prediction = options.prediction_type.value_or(scheduler.prediction_type);
  if (!IsFlow(scheduler) && prediction != PredictionType::kEpsilon && prediction != PredictionType::kVelocity) {
    return absl::InvalidArgumentError(absl::StrCat("scheduler_config.json: prediction_type is \"",
                                                   PredictionTypeName(prediction),
                                                   "\"; only models that predict \"epsilon\", \"v_prediction\" or a "
                                                   "flow can be trained; set train.prediction_type"));
  }
  return Objective(scheduler, options);
}

Objective::Objective(const SamplerConfig& scheduler, const ObjectiveOptions& options)
    : options_(options),
      prediction_(options.prediction_type.value_or(scheduler.prediction_type)),
      timesteps_(scheduler.num_train_timesteps) {
  if (IsFlow(scheduler)) {
    flow_.emplace(scheduler);
  } else {
    alphas_cumprod_ = ExactAlphasCumprod(scheduler);
  }
}

TrainingLevel Objective::AtSigma(double sigma) const {
  return {.timestep = sigma * static_cast<double>(timesteps_),
          .alpha = 1 - sigma,
          .sigma = sigma,
          .weight = LevelWeight(options_.density.scheme, sigma)};
}

TrainingLevel Objective::AtTimestep(int64_t timestep) const {
  const double product = alphas_cumprod_[static_cast<size_t>(timestep)], snr = product / (1 - product);
  TrainingLevel level{
      .timestep = static_cast<double>(timestep), .alpha = std::sqrt(product), .sigma = std::sqrt(1 - product)};
  if (options_.snr_gamma > 0) {
    // With zero terminal SNR the last level has no signal, so a prediction of its noise carries no information.
    const double divisor = prediction_ == PredictionType::kVelocity ? snr + 1 : snr;
    level.weight = divisor > 0 ? std::min(snr, options_.snr_gamma) / divisor : 0;
  }
  return level;
}

TrainingLevel Objective::LevelOf(const LevelDraw& draw, int64_t tokens) const {
  if (flow_) {
    const FlowLevel level = flow_->At(Quantile(options_.density, draw), tokens);
    TrainingLevel result = AtSigma(level.sigma);
    result.timestep = level.timestep;
    return result;
  }
  const double count = static_cast<double>(timesteps_);
  return AtTimestep(static_cast<int64_t>(std::clamp(std::floor(draw.uniform * count), 0.0, count - 1)));
}

TrainingTarget Objective::Make(const at::Tensor& x0, const at::Tensor& noise,
                               std::span<const TrainingLevel> levels) const {
  std::vector<NoiseLevel> noise_levels;
  TrainingTarget result{
      .noisy = {}, .target = {}, .timesteps = at::empty({static_cast<int64_t>(levels.size())}, at::kDouble)};
  double* const timesteps = result.timesteps.mutable_data_ptr<double>();
  for (size_t i = 0; i < levels.size(); ++i) {
    noise_levels.push_back({.alpha = levels[i].alpha, .sigma = levels[i].sigma});
    result.weights.push_back(levels[i].weight);
    timesteps[i] = levels[i].timestep;
  }
  result.noisy = AddNoise(x0, noise, noise_levels);
  result.target = flow_                                      ? noise - x0
                  : prediction_ == PredictionType::kVelocity ? Velocity(x0, noise, noise_levels)
                                                             : noise;
  return result;
}

}  // namespace tessera::runtime
