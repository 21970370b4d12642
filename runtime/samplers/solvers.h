// Declares the samplers' classes and the formulas that they share. Private to the samplers; other code uses sampler.h.
//
// A step of every solver is a weighted sum of the sample, the prediction, the history and noise. The weights are merged
// here in double precision, so that a device computes the sum in one pass. Clipping or thresholding the predicted
// sample splits it into two such sums.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "runtime/samplers/sampler.h"

namespace tessera::runtime {

// A weighted sum of the inputs of a step.
struct Terms {
  double sample = 0, prediction = 0;
  double limited = 0;            // weight of the result of Sampler::Limit
  double newest = 0, older = 0;  // of the history
  double noise = 0;

  Terms operator*(double factor) const;
  Terms operator+(const Terms& other) const;
};

struct StepTerms {
  std::optional<Terms> limited;  // passed to Sampler::Limit first; the other sums may have a term of the result
  Terms next;                    // the sample at the next noise level
  std::optional<Terms> kept;     // becomes the newest of the history
  bool keeps_two = false;        // whether the previous newest becomes the older one
};

// A sampler whose class has these options. Solver is the class derived from it.
template <typename Solver, typename Options>
class SolverWith : public Sampler {
 public:
  SolverWith(const SamplerConfig& config, Schedule schedule)
      : Sampler(config, std::move(schedule)), options_(std::get<Options>(config.options)) {}

  std::unique_ptr<Sampler> Clone() const override {
    return std::make_unique<Solver>(static_cast<const Solver&>(*this));
  }

 protected:
  const Options& options() const { return options_; }

 private:
  Options options_;
};

std::unique_ptr<Sampler> MakeDpmSolver(const SamplerConfig& config, Schedule schedule);

// Returns x0 of sample = alpha x0 + sigma noise as a sum of the sample and the model's prediction. For a flow alpha = 1
// - sigma.
Terms PredictedSample(PredictionType type, const NoiseLevel& level);
// Returns the noise of the same equation.
Terms PredictedNoise(PredictionType type, const NoiseLevel& level);

// Dynamic thresholding (Imagen): each sample of the batch is clipped to a quantile of its absolute values, at least 1
// and at most max_value, and divided by that. The quantile is over the whole sample, interpolated linearly.
at::Tensor DynamicThreshold(const at::Tensor& sample, double ratio, double max_value);

}  // namespace tessera::runtime
