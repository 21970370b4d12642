// The samplers' classes and the formulas that they share. Private to the samplers; others use sampler.h.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <utility>
#include <variant>

#include "runtime/samplers/sampler.h"

namespace tessera::runtime {

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
at::Tensor PredictedSample(PredictionType type, const at::Tensor& sample, const at::Tensor& prediction,
                           const NoiseLevel& level);
// The noise of the same.
at::Tensor PredictedNoise(PredictionType type, const at::Tensor& sample, const at::Tensor& prediction,
                          const NoiseLevel& level);

// Dynamic thresholding (Imagen): each sample of the batch is clipped to its own quantile of absolute values, at least 1
// and at most max_value, and divided by it. The quantile is over the whole sample, interpolated linearly.
at::Tensor DynamicThreshold(const at::Tensor& sample, double ratio, double max_value);

}  // namespace tessera::runtime
