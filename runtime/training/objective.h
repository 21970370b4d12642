// Objective defines what a model is trained to predict, from which noisy sample, and the weight of its error. Names and
// formulas are those of diffusers' training scripts: flow matching (SD3, FLUX.1), and prediction of the noise or of v
// with min-SNR weights (Hang et al., 2023).
//
// Shapes: b samples of a batch, [c, h, w] a sample's latents.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/samplers/sampler_config.h"
#include "runtime/training/density.h"

namespace tessera::runtime {

struct ObjectiveOptions {
  DensityOptions density;                         // for a flow
  std::optional<PredictionType> prediction_type;  // replaces the scheduler's; kFlow only for flows
  double snr_gamma = 0;  // for other models: weights are min(snr, gamma) / snr (noise) or / (snr + 1) (v); 0: all
                         // weights are 1
};

// The level at which noise is added to a sample.
struct TrainingLevel {
  double timestep = 0;  // the model's input
  double alpha = 1;     // the noisy sample is alpha x0 + sigma noise
  double sigma = 0;
  double weight = 1;  // of the sample's squared error
};

// The inputs of the model for a batch, and the predictions that it should return.
struct TrainingTarget {
  at::Tensor noisy;             // [b, c, h, w]
  at::Tensor target;            // [b, c, h, w]
  at::Tensor timesteps;         // [b] in fp64 on the host
  std::vector<double> weights;  // of b samples
};

// Immutable.
class Objective final {
 public:
  // `scheduler` is the model's. Returns InvalidArgument if the prediction is the sample, which no script here trains,
  // or does not fit the scheduler, which has either a noise table or the levels of a flow.
  static absl::StatusOr<Objective> Create(const SamplerConfig& scheduler, const ObjectiveOptions& options);

  // Returns the level of a sample with these random numbers, whose image has that many tokens.
  TrainingLevel LevelOf(const LevelDraw& draw, int64_t tokens) const;
  // Returns the level of an integer timestep of the noise table; for a flow AtSigma returns it by its sigma in (0, 1].
  TrainingLevel AtTimestep(int64_t timestep) const;
  TrainingLevel AtSigma(double sigma) const;

  bool is_flow() const { return flow_.has_value(); }
  PredictionType prediction_type() const { return prediction_; }
  int64_t timesteps() const { return timesteps_; }

  // x0 and noise [b, c, h, w] have one dtype, fp32 or fp64; there is a level for each sample. Computed and returned in
  // that dtype.
  TrainingTarget Make(const at::Tensor& x0, const at::Tensor& noise, std::span<const TrainingLevel> levels) const;

 private:
  Objective(const SamplerConfig& scheduler, const ObjectiveOptions& options);

  ObjectiveOptions options_;
  PredictionType prediction_;
  int64_t timesteps_;
  std::optional<FlowLevelTable> flow_;
  std::vector<double> alphas_cumprod_;  // empty for a flow
};

}  // namespace tessera::runtime
