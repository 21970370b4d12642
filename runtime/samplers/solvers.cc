// Samplers without history (DDPM, DDIM, Euler, Euler for flows), and the choice of the one that a config asks for.
#include "runtime/samplers/solvers.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace tessera::runtime {
namespace {

// Clipping or thresholding of the predicted sample, as DDPM and DDIM do it.
at::Tensor Limited(const Clipping& options, const at::Tensor& x0) {
  if (options.thresholding) {
    return DynamicThreshold(x0, options.dynamic_thresholding_ratio, options.sample_max_value);
  }
  if (options.clip_sample) return x0.clamp(-options.clip_sample_range, options.clip_sample_range);
  return x0;
}

NoiseLevel LevelOf(double alpha_cumprod) { return {std::sqrt(alpha_cumprod), std::sqrt(1 - alpha_cumprod)}; }

// Ancestral sampling of "Denoising Diffusion Probabilistic Models", formula 7.
class DdpmSampler final : public SolverWith<DdpmSampler, DdpmOptions> {
 public:
  using SolverWith::SolverWith;

  bool needs_noise() const override { return !done() && timestep() > 0; }

 private:
  at::Tensor Advance(const at::Tensor& sample, const at::Tensor& prediction, const at::Tensor& noise) override {
    const double now = alphas_[static_cast<size_t>(timestep())];
    const bool last = step() + 1 == num_steps();
    const double next = last ? 1.0 : alphas_[static_cast<size_t>(schedule().timesteps[step() + 1])];
    const double alpha = now / next;
    const double beta = 1 - alpha;
    const at::Tensor x0 =
        Limited(options(), PredictedSample(config().prediction_type, sample, prediction, LevelOf(now)));
    at::Tensor mean = x0 * (std::sqrt(next) * beta / (1 - now)) + sample * (std::sqrt(alpha) * (1 - next) / (1 - now));
    if (!noise.defined()) return mean;
    const double posterior = std::max((1 - next) / (1 - now) * beta, 1e-20);
    const double variance = options().variance_type == VarianceType::kFixedLarge ? beta : posterior;
    return mean + noise * std::sqrt(variance);
  }

  std::vector<float> alphas_ = AlphasCumprod(config());
};

// "Denoising Diffusion Implicit Models", formulas 12 and 16.
class DdimSampler final : public SolverWith<DdimSampler, DdimOptions> {
 public:
  using SolverWith::SolverWith;

  bool needs_noise() const override { return !done() && Deviation(Now(), Next()) > 0; }

 private:
  double Now() const { return alphas_[static_cast<size_t>(timestep())]; }

  // The next level is one stride below, whatever the spacing of the timesteps.
  double Next() const {
    const int64_t next = static_cast<int64_t>(timestep()) - config().num_train_timesteps / num_steps();
    if (next >= 0) return alphas_[next];
    return options().set_alpha_to_one ? 1.0 : alphas_.front();
  }

  double Deviation(double now, double next) const {
    return options().eta * std::sqrt((1 - next) / (1 - now) * (1 - now / next));
  }

  at::Tensor Advance(const at::Tensor& sample, const at::Tensor& prediction, const at::Tensor& noise) override {
    const double now = Now();
    const double next = Next();
    const double deviation = Deviation(now, next);
    const NoiseLevel level = LevelOf(now);
    const at::Tensor x0 = Limited(options(), PredictedSample(config().prediction_type, sample, prediction, level));
    const at::Tensor epsilon = PredictedNoise(config().prediction_type, sample, prediction, level);
    const double direction = std::sqrt(std::max(1 - next - deviation * deviation, 0.0));
    const at::Tensor result = x0 * std::sqrt(next) + epsilon * direction;
    return noise.defined() ? result + noise * deviation : result;
  }

  std::vector<float> alphas_ = AlphasCumprod(config());
};

// Euler's method in the variance-exploding form, sample = x0 + sigma noise: algorithm 2 of Karras 2022 without churn.
class EulerSampler final : public SolverWith<EulerSampler, EulerOptions> {
 public:
  using SolverWith::SolverWith;

  at::Tensor ScaleInput(const at::Tensor& sample) const override {
    TORCH_CHECK(!done(), "the sampler has done all of its ", num_steps(), " steps");
    const double now = sigma(0);
    return sample / std::sqrt(now * now + 1);
  }

 private:
  at::Tensor Advance(const at::Tensor& sample, const at::Tensor& prediction, const at::Tensor&) override {
    const double now = sigma(0);
    const double stride = sigma(1) - now;
    switch (config().prediction_type) {
      case PredictionType::kEpsilon:
        return sample + prediction * stride;
      case PredictionType::kVelocity: {
        const double scale = now * now + 1;
        const at::Tensor x0 = sample / scale - prediction * (now / std::sqrt(scale));
        return sample + (sample - x0) * (stride / now);
      }
      case PredictionType::kSample:
      case PredictionType::kFlow:
        break;
    }
    return sample + (sample - prediction) * (stride / now);
  }
};

// Euler's method for rectified flows, sample = (1 - sigma) x0 + sigma noise, prediction = noise - x0; or, stochastic,
// fresh noise at every level.
class FlowEulerSampler final : public SolverWith<FlowEulerSampler, FlowEulerOptions> {
 public:
  using SolverWith::SolverWith;

  bool needs_noise() const override { return !done() && options().stochastic_sampling && sigma(1) > 0; }

 private:
  at::Tensor Advance(const at::Tensor& sample, const at::Tensor& prediction, const at::Tensor& noise) override {
    if (!options().stochastic_sampling) return sample + prediction * (sigma(1) - sigma(0));
    const at::Tensor x0 = (sample - prediction * sigma(0)) * (1 - sigma(1));
    return noise.defined() ? x0 + noise * sigma(1) : x0;
  }
};

template <typename Solver>
std::unique_ptr<Sampler> Make(const SamplerConfig& config, Schedule schedule) {
  return std::make_unique<Solver>(config, std::move(schedule));
}

// In the order of SamplerOptions.
constexpr decltype(&MakeDpmSolver) kSolvers[] = {Make<DdpmSampler>, Make<DdimSampler>, Make<EulerSampler>,
                                                 MakeDpmSolver, Make<FlowEulerSampler>};
static_assert(std::size(kSolvers) == std::variant_size_v<SamplerOptions>);

}  // namespace

absl::StatusOr<std::unique_ptr<Sampler>> Sampler::Create(const SamplerConfig& config, int steps,
                                                         const ScheduleOptions& options) {
  ASSIGN_OR_RETURN(Schedule schedule, MakeSchedule(config, steps, options));
  return kSolvers[config.options.index()](config, std::move(schedule));
}

}  // namespace tessera::runtime
