// Implements DPM-Solver (Lu 2022), DPM-Solver++ and their stochastic forms: multistep, orders 1 to 3.
#include <cmath>
#include <utility>
#include <vector>

#include "runtime/samplers/solvers.h"

namespace tessera::runtime {
namespace {

// A step is sample * x + d0 * D0 + d1 * D1 + d2 * D2 + noise * z, with D0 the newest prediction and D1, D2 its first
// and second divided differences over the log signal-to-noise ratio.
struct StepCoefficients {
  double sample = 0.0;
  double d0 = 0.0;
  double d1 = 0.0;
  double d2 = 0.0;
  double noise = 0.0;
};

class DpmSolverSampler final : public SolverWith<DpmSolverSampler, DpmSolverOptions> {
 public:
  using SolverWith::SolverWith;

  bool needs_noise() const override { return !done() && Coefficients(Order()).noise != 0; }

 private:
  bool PredictsSample() const {
    return options().algorithm_type == DpmAlgorithm::kDpmSolverPlusPlus ||
           options().algorithm_type == DpmAlgorithm::kSdeDpmSolverPlusPlus;
  }

  // Returns the level `ahead` steps from the next one; negative values are past steps.
  NoiseLevel Level(int ahead) const { return LevelBefore(step() + ahead); }

  NoiseLevel LevelBefore(int step) const override {
    const double now = schedule().sigmas[step];
    if (options().use_flow_sigmas) return {1 - now, now};
    const double alpha = 1 / std::sqrt(now * now + 1);
    return {alpha, now * alpha};
  }

  // Returns the log signal-to-noise ratio, which is infinite at the final sigma 0.
  double Lambda(int ahead) const {
    const NoiseLevel level = Level(ahead);
    return std::log(level.alpha) - std::log(level.sigma);
  }

  // Returns the order of the next step. It is limited by the history, and lower at the end, where a high order is
  // unstable for few steps.
  int Order() const {
    const int left = num_steps() - step();
    const bool few = options().lower_order_final && num_steps() < 15;
    const bool first_order_last = options().euler_at_final || few || options().final_sigmas_type == FinalSigma::kZero;
    int order = std::min(static_cast<int>(options().solver_order), step() - first_step() + 1);
    if (left == 1 && first_order_last) order = 1;
    if (left == 2 && few) order = std::min(order, 2);
    return order;
  }

  StepCoefficients Coefficients(int order) const {
    const NoiseLevel now = Level(0);
    const NoiseLevel next = Level(1);
    const double h = Lambda(1) - Lambda(0);
    if (h == 0) return {.sample = 1.0};  // both levels are the same
    StepCoefficients step;
    double heun = 0.0;    // of D1
    double second = 0.0;  // of D2
    switch (options().algorithm_type) {
      case DpmAlgorithm::kDpmSolverPlusPlus: {
        const double decay = std::expm1(-h);
        step.sample = next.sigma / now.sigma;
        step.d0 = -next.alpha * decay;
        heun = next.alpha * (decay / h + 1);
        second = -next.alpha * ((decay + h) / (h * h) - 0.5);
        break;
      }
      case DpmAlgorithm::kDpmSolver: {
        const double growth = std::expm1(h);
        step.sample = next.alpha / now.alpha;
        step.d0 = -next.sigma * growth;
        heun = -next.sigma * (growth / h - 1);
        second = -next.sigma * ((growth - h) / (h * h) - 0.5);
        break;
      }
      case DpmAlgorithm::kSdeDpmSolverPlusPlus: {
        const double gain = -std::expm1(-2 * h);
        step.sample = next.sigma / now.sigma * std::exp(-h);
        step.d0 = next.alpha * gain;
        heun = next.alpha * (1 - gain / (2 * h));
        second = next.alpha * ((gain - 2 * h) / (4 * h * h) - 0.5);
        step.noise = next.sigma * std::sqrt(gain);
        break;
      }
      case DpmAlgorithm::kSdeDpmSolver: {
        const double growth = std::expm1(h);
        step.sample = next.alpha / now.alpha;
        step.d0 = -2 * next.sigma * growth;
        heun = -2 * next.sigma * (growth / h - 1);
        step.noise = next.sigma * std::sqrt(std::expm1(2 * h));
        break;
      }
    }
    if (order == 2) step.d1 = options().solver_type == DpmSolverType::kMidpoint ? 0.5 * step.d0 : heun;
    if (order == 3) {
      step.d1 = heun;
      step.d2 = second;
    }
    return step;
  }

  // Returns the quantity that the solver extrapolates: the predicted sample for the ++ forms, the predicted noise for
  // the others.
  Terms Converted(StepTerms& step) const {
    const NoiseLevel level = Level(0);
    const PredictionType type = config().prediction_type;
    if (!options().thresholding) {
      return PredictsSample() ? PredictedSample(type, level) : PredictedNoise(type, level);
    }
    step.limited = PredictedSample(type, level);
    if (PredictsSample()) return {.limited = 1};
    return {.sample = 1 / level.sigma, .limited = -level.alpha / level.sigma};
  }

  StepTerms TermsOfStep() const override {
    StepTerms terms;
    const Terms d0 = Converted(terms);
    const int order = Order();
    const StepCoefficients step = Coefficients(order);
    terms.next = Terms{.sample = step.sample, .noise = step.noise} + d0 * step.d0;
    if (order >= 2 && step.d1 != 0) {
      const double h = Lambda(1) - Lambda(0);
      const double r0 = (Lambda(0) - Lambda(-1)) / h;
      Terms d1 = (d0 + Terms{.newest = -1}) * (1 / r0);
      if (order == 3) {
        const double r1 = (Lambda(-1) - Lambda(-2)) / h;
        const Terms change = d1 + Terms{.newest = -1 / r1, .older = 1 / r1};
        terms.next = terms.next + change * (step.d2 / (r0 + r1));
        d1 = d1 + change * (r0 / (r0 + r1));
      }
      terms.next = terms.next + d1 * step.d1;
    }
    if (options().solver_order > 1) terms.kept = d0;
    terms.keeps_two = options().solver_order > 2;
    return terms;
  }

  at::Tensor Limit(const at::Tensor& x0) const override {
    return DynamicThreshold(x0, options().dynamic_thresholding_ratio, options().sample_max_value);
  }
};

}  // namespace

std::unique_ptr<Sampler> MakeDpmSolver(const SamplerConfig& config, Schedule schedule) {
  return std::make_unique<DpmSolverSampler>(config, std::move(schedule));
}

}  // namespace tessera::runtime
