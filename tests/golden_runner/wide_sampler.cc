#include "tests/golden_runner/wide_sampler.h"

#include <cmath>
#include <utility>

#include "runtime/samplers/solvers.h"

namespace tessera::golden {
namespace {

class WideFlowEuler final : public runtime::SolverWith<WideFlowEuler, runtime::FlowEulerOptions> {
 public:
  using SolverWith::SolverWith;

 protected:
  runtime::NoiseLevel LevelBefore(int step) const override {
    return {.alpha = 1 - schedule().sigmas[step], .sigma = schedule().sigmas[step]};
  }

  runtime::StepTerms TermsOfStep() const override {
    runtime::StepTerms terms;
    terms.next = {.sample = 1, .prediction = sigma(1) - sigma(0)};
    return terms;
  }
};

// Returns sigmas at even steps from 1 down to 1/n or to the lowest trained level, and then shifted.
runtime::Schedule FlowSchedule(const runtime::SamplerConfig& config, int steps, const models::Family& family,
                               int64_t tokens) {
  const auto& options = std::get<runtime::FlowEulerOptions>(config.options);
  const auto train = static_cast<double>(config.num_train_timesteps);
  const auto shifted = [&](double sigma) { return options.shift * sigma / (1 + (options.shift - 1) * sigma); };
  const bool dynamic = options.use_dynamic_shifting;
  const double log_mu = family.has_empirical_shift() ? runtime::EmpiricalShiftMu(tokens, steps)
                                                     : runtime::DynamicShiftMu(options, tokens);
  const double mu = dynamic ? std::exp(log_mu) : 0;
  const double low = family.flow_sigmas() != models::FlowSigmas::kSampler ? 1.0 / steps
                     : dynamic                                            ? 1 / train
                                                                          : shifted(1 / train);
  runtime::Schedule schedule;
  for (int i = 0; i < steps; ++i) {
    const double even = steps == 1 ? 1 : 1 + (low - 1) * i / (steps - 1);
    schedule.sigmas.push_back(dynamic ? mu / (mu + (1 / even - 1)) : shifted(even));
    schedule.timesteps.push_back(schedule.sigmas.back() * train);
  }
  if (options.shift_terminal > 0) {
    const double stretch = (1 - schedule.sigmas.back()) / (1 - options.shift_terminal);
    for (double& sigma : schedule.sigmas) sigma = 1 - (1 - sigma) / stretch;
    for (size_t i = 0; i < schedule.timesteps.size(); ++i) schedule.timesteps[i] = schedule.sigmas[i] * train;
  }
  schedule.sigmas.push_back(0);
  return schedule;
}

}  // namespace

absl::StatusOr<std::unique_ptr<runtime::Sampler>> MakeWideSampler(const runtime::SamplerConfig& config, int steps,
                                                                  const models::Family& family,
                                                                  const models::LatentGeometry& geometry) {
  if (std::holds_alternative<runtime::FlowEulerOptions>(config.options)) {
    return std::make_unique<WideFlowEuler>(config, FlowSchedule(config, steps, family, geometry.grid.count()));
  }
  if (!std::holds_alternative<runtime::DpmSolverOptions>(config.options)) {
    return absl::UnimplementedError("trajectories in fp64 with this sampler");
  }
  absl::StatusOr<runtime::Schedule> schedule = runtime::MakeSchedule(config, steps, {});
  if (!schedule.ok()) return schedule.status();
  const std::vector<double> alphas = runtime::ExactAlphasCumprod(config);
  for (size_t i = 0; i < schedule->timesteps.size(); ++i) {
    const double alpha = alphas[static_cast<size_t>(schedule->timesteps[i])];
    schedule->sigmas[i] = std::sqrt((1 - alpha) / alpha);
  }
  return runtime::MakeDpmSolver(config, *std::move(schedule));
}

}  // namespace tessera::golden
