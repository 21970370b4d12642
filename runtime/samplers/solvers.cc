// Implements the samplers without history (DDPM, DDIM, Euler, Euler for flows), and makes the sampler of a config.
#include "runtime/samplers/solvers.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/macros/status_macros.h"

namespace tessera::runtime {
namespace {

// A step that reads the predicted sample, which DDPM and DDIM clip or threshold.
template <typename Solver, typename Options>
class ClippingSolver : public SolverWith<Solver, Options> {
 public:
  using SolverWith<Solver, Options>::SolverWith;

 protected:
  // Returns the predicted sample, and adds to `step` the limiting that it requires.
  Terms AddPredictedSample(const NoiseLevel& level, StepTerms& step) const {
    const Terms x0 = PredictedSample(this->config().prediction_type, level);
    if (!this->options().thresholding && !this->options().clip_sample) return x0;
    step.limited = x0;
    return {.limited = 1};
  }

 private:
  at::Tensor Limit(const at::Tensor& x0) const override {
    const Clipping& options = this->options();
    if (options.thresholding) {
      return DynamicThreshold(x0, options.dynamic_thresholding_ratio, options.sample_max_value);
    }
    return x0.clamp(-options.clip_sample_range, options.clip_sample_range);
  }
};

NoiseLevel LevelOf(double alpha_cumprod) { return {std::sqrt(alpha_cumprod), std::sqrt(1 - alpha_cumprod)}; }

// Ancestral sampling, formula 7 of "Denoising Diffusion Probabilistic Models".
class DdpmSampler final : public ClippingSolver<DdpmSampler, DdpmOptions> {
 public:
  using ClippingSolver::ClippingSolver;

  bool needs_noise() const override { return !done() && timestep() > 0; }

 private:
  NoiseLevel LevelBefore(int step) const override { return LevelOf(alphas_[static_cast<size_t>(timestep(step))]); }

  StepTerms TermsOfStep() const override {
    const double now = alphas_[static_cast<size_t>(timestep())];
    const bool last = step() + 1 == num_steps();
    const double next = last ? 1.0 : alphas_[static_cast<size_t>(schedule().timesteps[step() + 1])];
    const double alpha = now / next;
    const double beta = 1 - alpha;
    StepTerms terms;
    const Terms x0 = AddPredictedSample(LevelOf(now), terms);
    terms.next = x0 * (std::sqrt(next) * beta / (1 - now)) + Terms{.sample = std::sqrt(alpha) * (1 - next) / (1 - now)};
    if (!needs_noise()) return terms;
    const double posterior = std::max((1 - next) / (1 - now) * beta, 1e-20);
    terms.next.noise = std::sqrt(options().variance_type == VarianceType::kFixedLarge ? beta : posterior);
    return terms;
  }

  std::vector<float> alphas_ = AlphasCumprod(config());
};

// Formulas 12 and 16 of "Denoising Diffusion Implicit Models".
class DdimSampler final : public ClippingSolver<DdimSampler, DdimOptions> {
 public:
  using ClippingSolver::ClippingSolver;

  bool needs_noise() const override { return !done() && Deviation(Now(), Next()) > 0; }

 private:
  NoiseLevel LevelBefore(int step) const override { return LevelOf(alphas_[static_cast<size_t>(timestep(step))]); }

  double Now() const { return alphas_[static_cast<size_t>(timestep())]; }

  // The next level is one stride below, whatever the spacing of the timesteps is.
  double Next() const {
    const int64_t next = static_cast<int64_t>(timestep()) - config().num_train_timesteps / num_steps();
    if (next >= 0) return alphas_[next];
    return options().set_alpha_to_one ? 1.0 : alphas_.front();
  }

  double Deviation(double now, double next) const {
    return options().eta * std::sqrt((1 - next) / (1 - now) * (1 - now / next));
  }

  StepTerms TermsOfStep() const override {
    const double now = Now();
    const double next = Next();
    const double deviation = Deviation(now, next);
    StepTerms terms;
    const Terms x0 = AddPredictedSample(LevelOf(now), terms);
    const Terms epsilon = PredictedNoise(config().prediction_type, LevelOf(now));
    const double direction = std::sqrt(std::max(1 - next - deviation * deviation, 0.0));
    terms.next = x0 * std::sqrt(next) + epsilon * direction;
    if (deviation > 0) terms.next.noise = deviation;
    return terms;
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
  NoiseLevel LevelBefore(int step) const override { return {.alpha = 1, .sigma = schedule().sigmas[step]}; }

  StepTerms TermsOfStep() const override {
    const double now = sigma(0);
    const double stride = sigma(1) - now;
    StepTerms terms;
    switch (config().prediction_type) {
      case PredictionType::kEpsilon:
        terms.next = {.sample = 1, .prediction = stride};
        return terms;
      case PredictionType::kVelocity: {
        const double scale = now * now + 1;
        const Terms x0{.sample = 1 / scale, .prediction = -now / std::sqrt(scale)};
        terms.next = Terms{.sample = 1 + stride / now} + x0 * (-stride / now);
        return terms;
      }
      case PredictionType::kSample:
      case PredictionType::kFlow:
        break;
    }
    terms.next = {.sample = 1 + stride / now, .prediction = -stride / now};
    return terms;
  }
};

// Euler's method for rectified flows, sample = (1 - sigma) x0 + sigma noise, prediction = noise - x0. The stochastic
// variant draws new noise at every level.
class FlowEulerSampler final : public SolverWith<FlowEulerSampler, FlowEulerOptions> {
 public:
  using SolverWith::SolverWith;

  bool needs_noise() const override { return !done() && options().stochastic_sampling && sigma(1) > 0; }

 private:
  NoiseLevel LevelBefore(int step) const override {
    const double sigma = schedule().sigmas[step];
    return {.alpha = 1 - sigma, .sigma = sigma};
  }

  StepTerms TermsOfStep() const override {
    StepTerms terms;
    if (!options().stochastic_sampling) {
      terms.next = {.sample = 1, .prediction = sigma(1) - sigma(0)};
      return terms;
    }
    terms.next = PredictedSample(PredictionType::kFlow, {.alpha = 1 - sigma(0), .sigma = sigma(0)}) * (1 - sigma(1));
    if (needs_noise()) terms.next.noise = sigma(1);
    return terms;
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
