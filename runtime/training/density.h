// Computes which noise levels a flow is trained at, and the weight of a level's error, under the names of diffusers'
// training scripts. Pure functions, no LibTorch. Source: Esser et al., 2024 (Stable Diffusion 3), section 3.1.
#pragma once

#include <optional>

#include "control/training/config.h"
#include "runtime/samplers/sampler_config.h"
#include "runtime/samplers/schedule.h"

namespace tessera::runtime {

// The density that levels are drawn from, and the weight of a level's error:
//   none          uniform, 1
//   sigma_sqrt    uniform, sigma^-2
//   logit_normal  sigmoid of a normal number, 1
//   mode          1 - u - mode_scale (cos²(pi u / 2) - 1 + u) of a uniform u, 1
//   cosmap        uniform, 2 / (pi (1 - 2 sigma + 2 sigma²))
using control::WeightingScheme;

struct DensityOptions {
  WeightingScheme scheme = WeightingScheme::kNone;
  double logit_mean = 0;
  double logit_std = 1;
  double mode_scale = 1.29;
};

// The random numbers from which a sample's level is drawn: a standard normal number, and a uniform number in [0, 1).
struct LevelDraw {
  double normal = 0;
  double uniform = 0;
};

// Returns a number in [0, 1], where 0 is the noisiest level. The scripts use the level at this fraction of the table.
double Quantile(const DensityOptions& options, const LevelDraw& draw);

// Returns the weight of a level's squared error; sigma in (0, 1].
double LevelWeight(WeightingScheme scheme, double sigma);

// Returns sigma · shift / (1 + (shift - 1) sigma); sigma in [0, 1], shift > 0. This is the shift by `shift`, and with
// e^mu the shift by the image's size, e^mu / (e^mu + 1 / sigma - 1).
double ShiftLevel(double sigma, double shift);

struct FlowLevel {
  double timestep = 0;  // the model's input: 1000 sigma if the model has 1000 levels
  double sigma = 0;     // the sample is (1 - sigma) x0 + sigma noise
};

// The levels of a flow model's training according to its scheduler_config.json: num_train_timesteps, shifted by `shift`
// or, with use_dynamic_shifting, by the image's number of tokens (DynamicShiftMu). Immutable.
class FlowLevelTable final {
 public:
  // `config` must be of a class with FlowLevels.
  explicit FlowLevelTable(const SamplerConfig& config);

  // Returns the level of a quantile, for an image with that many tokens.
  FlowLevel At(double quantile, int64_t tokens) const;

 private:
  Schedule schedule_;
  std::optional<DynamicShift> dynamic_;
};

}  // namespace tessera::runtime
