#include "runtime/samplers/sampler.h"

#include <algorithm>

#include "base/macros/planted.h"
#include "kernels/ops.h"
#include "runtime/samplers/solvers.h"

namespace tessera::runtime {

double Sampler::timestep(int step) const {
  TORCH_CHECK(step >= 0 && step < num_steps(), "the sampler has ", num_steps(), " steps and none of number ", step);
  if (base::Planted("timestep_off_by_one")) return schedule_.timesteps[std::min(step + 1, num_steps() - 1)];
  return schedule_.timesteps[step];
}

void Sampler::BeginAt(int step) {
  TORCH_CHECK(step >= 0 && step < num_steps(), "the sampler has ", num_steps(), " steps and cannot begin at ", step);
  TORCH_CHECK(step_ == first_step_, "the sampler has begun");
  first_step_ = step;
  step_ = base::Planted("begin_step_ignored") ? 0 : step;
}

NoiseLevel Sampler::level(int step) const {
  TORCH_CHECK(step >= 0 && step <= num_steps(), "the sampler has ", num_steps(), " steps and no level ", step);
  return step == num_steps() ? NoiseLevel{} : LevelBefore(step);
}

Terms Terms::operator*(double factor) const {
  return {.sample = sample * factor,
          .prediction = prediction * factor,
          .limited = limited * factor,
          .newest = newest * factor,
          .older = older * factor,
          .noise = noise * factor};
}

Terms Terms::operator+(const Terms& other) const {
  return {.sample = sample + other.sample,
          .prediction = prediction + other.prediction,
          .limited = limited + other.limited,
          .newest = newest + other.newest,
          .older = older + other.older,
          .noise = noise + other.noise};
}

at::Tensor Sampler::Step(const at::Tensor& sample, std::span<const WeightedPrediction> predictions,
                         const at::Tensor& noise, const at::Tensor& state) {
  TORCH_CHECK(!done(), "the sampler has done all of its ", num_steps(), " steps");
  const at::ScalarType dtype = sample.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const StepTerms terms = TermsOfStep();
  std::vector<at::Tensor> inputs;
  std::vector<double> of_limited, of_next, of_kept;
  const auto add = [&](const at::Tensor& tensor, double factor, double Terms::*member) {
    const double weights[] = {terms.limited.value_or(Terms()).*member, terms.next.*member,
                              terms.kept.value_or(Terms()).*member};
    if (weights[0] == 0 && weights[1] == 0 && weights[2] == 0) return;
    TORCH_CHECK(tensor.defined() && tensor.sizes() == sample.sizes(),
                "a step reads a prediction, noise or history that does not have the sample's shape, ", sample.sizes());
    inputs.push_back(tensor.to(dtype));
    of_limited.push_back(weights[0] * factor);
    of_next.push_back(weights[1] * factor);
    of_kept.push_back(weights[2] * factor);
  };
  add(sample, 1, &Terms::sample);
  for (const WeightedPrediction& one : predictions) add(one.prediction, one.weight, &Terms::prediction);
  add(history_[0], 1, &Terms::newest);
  add(history_[1], 1, &Terms::older);
  add(noise, 1, &Terms::noise);
  if (terms.limited.has_value()) {
    add(Limit(kernels::WeightedSums(inputs, of_limited, std::nullopt).front()), 1, &Terms::limited);
  }
  std::vector<double> weights = of_next;
  if (terms.kept.has_value()) weights.insert(weights.end(), of_kept.begin(), of_kept.end());
  const std::vector<at::Tensor> sums =
      kernels::WeightedSums(inputs, weights, state.defined() ? std::optional(state) : std::nullopt);
  if (terms.kept.has_value() && !(base::Planted("sampler_history") && history_[0].defined())) {
    if (terms.keeps_two) history_[1] = history_[0];
    history_[0] = sums[1];
  }
  ++step_;
  return sums[0].to(sample.scalar_type());
}

Terms PredictedSample(PredictionType type, const NoiseLevel& level) {
  switch (type) {
    case PredictionType::kEpsilon:
      return {.sample = 1 / level.alpha, .prediction = -level.sigma / level.alpha};
    case PredictionType::kSample:
      return {.prediction = 1};
    case PredictionType::kVelocity:
      return {.sample = level.alpha, .prediction = -level.sigma};
    case PredictionType::kFlow:
      break;
  }
  return {.sample = 1, .prediction = -level.sigma};
}

Terms PredictedNoise(PredictionType type, const NoiseLevel& level) {
  switch (type) {
    case PredictionType::kEpsilon:
      return {.prediction = 1};
    case PredictionType::kSample:
      return {.sample = 1 / level.sigma, .prediction = -level.alpha / level.sigma};
    case PredictionType::kVelocity:
      return {.sample = level.sigma, .prediction = level.alpha};
    case PredictionType::kFlow:
      break;
  }
  return {.sample = 1, .prediction = 1 - level.sigma};
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
