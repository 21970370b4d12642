// Noise tables, timesteps and sigmas of a sampler: pure functions, no LibTorch.
//
// Where the reference library computes in single precision, so does this: a rounded timestep that sits on a tie must
// fall to the same side. Formulas: DDPM (Ho 2020), zero terminal SNR (Lin 2023), Karras sigmas (Karras 2022),
// resolution-dependent shift of rectified flows (Esser 2024).
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/samplers/sampler_config.h"

namespace tessera::runtime {

struct ScheduleOptions {
  // Dynamic shift. Required by use_dynamic_shifting for flow-euler, optional for flow DPM-Solver (then flow_shift is
  // used), ignored otherwise.
  std::optional<double> mu;
  // One sigma a step, before shifting, without the final one. For flow-euler; DPM-Solver with flow sigmas makes its
  // own and ignores them; an error for every other sampler.
  std::optional<std::vector<double>> sigmas;
};

struct Schedule {
  std::vector<double> timesteps;  // one a step, what the model gets; whole numbers but for euler and flow-euler
  // Empty for ddpm and ddim. Otherwise sigmas[i] is the level before step i and sigmas[i + 1] after it; at least one
  // more than timesteps.
  std::vector<double> sigmas;
  double init_noise_sigma = 1.0;  // standard deviation of the first sample
};

// The shift of a rectified flow for an image of that many tokens: linear from base_shift at base_image_seq_len to
// max_shift at max_image_seq_len, and beyond.
double DynamicShiftMu(const DynamicShift& options, int64_t tokens);

// The schedule of a job with that many steps. It has fewer steps only where lambda_min_clipped cuts some off.
// InvalidArgument: steps outside 1 … num_train_timesteps, mu missing, sigmas of the wrong number or not in (0, 1],
// options that lead to timesteps outside the table or to repeated ones in a multistep solver.
absl::StatusOr<Schedule> MakeSchedule(const SamplerConfig& config, int steps, const ScheduleOptions& options);

// Every level that a flow model is trained at, falling: timesteps and sigmas, num_train_timesteps of each.
// Only for classes with FlowLevels.
Schedule MakeFlowTrainingSchedule(const SamplerConfig& config);

// Product of (1 - beta) up to each training timestep, as the reference's single-precision table holds it. With
// rescale_betas_zero_snr the last is 0, for classes with TableSigmas 2^-24. Only for classes with a noise table, as the
// two below.
std::vector<float> AlphasCumprod(const SamplerConfig& config);
// The products in double precision, for training.
std::vector<double> ExactAlphasCumprod(const SamplerConfig& config);
// The betas of the table, single precision.
std::vector<float> Betas(const SamplerConfig& config);

// A noisy sample is alpha * x0 + sigma * noise.
struct NoiseLevel {
  double alpha = 1.0;
  double sigma = 0.0;
};

// The level at a training timestep: whole numbers in 0 … num_train_timesteps - 1, for flow models anything in
// 0 … num_train_timesteps. Euler scales its samples differently: alpha is 1 there. InvalidArgument out of range.
// For many timesteps get ExactAlphasCumprod once instead.
absl::StatusOr<NoiseLevel> TrainingNoiseLevel(const SamplerConfig& config, double timestep);

}  // namespace tessera::runtime
