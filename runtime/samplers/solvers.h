// The samplers' classes and the formulas that they share. Private to the samplers; others use sampler.h.
//
// A step of every solver is a weighted sum of the sample, the prediction, the history and noise; its weights are merged
// here, in double precision, so that a device adds everything up in one pass. What clips or thresholds the predicted
// sample on the way makes two such sums.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "runtime/samplers/sampler.h"

namespace tessera::runtime {

// A weighted sum of what a step reads.
struct Terms {
  double sample = 0, prediction = 0;
  double limited = 0;            // what Sampler::Limit made
  double newest = 0, older = 0;  // the history
  double noise = 0;

  Terms operator*(double factor) const;
  Terms operator+(const Terms& other) const;
};

struct StepTerms {
  std::optional<Terms> limited;  // goes through Sampler::Limit first; the other sums may have a term of the result
  Terms next;                    // the sample at the next noise level
  std::optional<Terms> kept;     // becomes the newest of the history
  bool keeps_two = false;        // and what was the newest the older one
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

// x0 of sample = alpha x0 + sigma noise, from what the model predicts. Flow: alpha = 1 - sigma.
Terms PredictedSample(PredictionType type, const NoiseLevel& level);
// The noise of the same.
Terms PredictedNoise(PredictionType type, const NoiseLevel& level);

// Dynamic thresholding (Imagen): each sample of the batch is clipped to its own quantile of absolute values, at least 1
// and at most max_value, and divided by it. The quantile is over the whole sample, interpolated linearly.
at::Tensor DynamicThreshold(const at::Tensor& sample, double ratio, double max_value);

}  // namespace tessera::runtime
