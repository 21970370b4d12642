// Computes the noise tables, timesteps and sigmas of a sampler: pure functions, no LibTorch.
//
// Computations that the reference library does in single precision are also in single precision here, because a
// timestep on a tie must be rounded to the same side. Formulas: DDPM (Ho 2020), zero terminal SNR (Lin 2023), Karras
// sigmas (Karras 2022), resolution-dependent shift of rectified flows (Esser 2024).
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/samplers/sampler_config.h"

namespace tessera::runtime {

struct ScheduleOptions {
  // Dynamic shift. Required by use_dynamic_shifting for flow-euler, optional for flow DPM-Solver (which otherwise uses
  // flow_shift), ignored by all others.
  std::optional<double> mu;
  // One sigma per step, before shifting, without the final one. For flow-euler; DPM-Solver with flow sigmas computes
  // them and ignores these; an error for every other sampler.
  std::optional<std::vector<double>> sigmas;
};

struct Schedule {
  std::vector<double> timesteps;  // one per step, the model's input; integers except for euler and flow-euler
  // Empty for ddpm and ddim. Otherwise sigmas[i] is the level before step i and sigmas[i + 1] the level after it; there
  // is at least one more than timesteps.
  std::vector<double> sigmas;
  double init_noise_sigma = 1.0;  // standard deviation of the initial sample
};

// Returns the shift of a rectified flow for an image with that many tokens: linear from base_shift at
// base_image_seq_len to max_shift at max_image_seq_len, and beyond.
double DynamicShiftMu(const DynamicShift& options, int64_t tokens);

// Returns the shift that FLUX.2's authors fitted to the number of an image's tokens and of steps. Source: the reference
// pipeline.
double EmpiricalShiftMu(int64_t tokens, int steps);

// Return `steps` sigmas at even distances from 1 down to 1 / steps, as numpy computes them in double precision and
// torch in single precision.
std::vector<double> LinearSigmas(int steps);
std::vector<double> SingleLinearSigmas(int steps);

// Returns the schedule of a job with that many steps; it has fewer only if lambda_min_clipped removes some. Returns
// InvalidArgument for steps outside 1 … num_train_timesteps, a missing mu, sigmas of the wrong number or outside (0,
// 1], and options that result in timesteps outside the table or in repeated ones in a multistep solver.
absl::StatusOr<Schedule> MakeSchedule(const SamplerConfig& config, int steps, const ScheduleOptions& options);

// Returns every level that a flow model is trained at, in descending order: num_train_timesteps timesteps and sigmas.
// Only for classes with FlowLevels.
Schedule MakeFlowTrainingSchedule(const SamplerConfig& config);

// Returns the product of (1 - beta) up to each training timestep, as in the reference's single-precision table. With
// rescale_betas_zero_snr the last is 0, for classes with TableSigmas 2^-24. Like the two functions below, only for
// classes with a noise table.
std::vector<float> AlphasCumprod(const SamplerConfig& config);
// Returns the products in double precision, for training.
std::vector<double> ExactAlphasCumprod(const SamplerConfig& config);
// Returns the betas of the table in single precision.
std::vector<float> Betas(const SamplerConfig& config);

// A noisy sample is alpha * x0 + sigma * noise.
struct NoiseLevel {
  double alpha = 1.0;
  double sigma = 0.0;
};

}  // namespace tessera::runtime
