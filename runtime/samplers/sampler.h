// Sampler moves one job's sample from noise to an image: at each timestep it takes the model's prediction and computes
// the sample at the next noise level.
//
// A Sampler belongs to one job and one thread at a time. It holds only the step index and the history of a multistep
// solver, and uses no random numbers, clock, input or output, so a job can be stopped after any step and joined to
// another batch. Coefficients are computed on the host in double precision, and nothing is read back from a device.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/samplers/sampler_config.h"
#include "runtime/samplers/schedule.h"

namespace tessera::runtime {

// A term of a guided prediction.
struct WeightedPrediction {
  at::Tensor prediction;
  double weight = 1;
};

struct StepTerms;

class Sampler {
 public:
  // Returns the errors of MakeSchedule.
  static absl::StatusOr<std::unique_ptr<Sampler>> Create(const SamplerConfig& config, int steps,
                                                         const ScheduleOptions& options = {});
  virtual ~Sampler() = default;

  // Returns an independent copy at the same step. Tensors of the history are shared, because they are never modified.
  virtual std::unique_ptr<Sampler> Clone() const = 0;

  int num_steps() const { return static_cast<int>(schedule_.timesteps.size()); }
  int step() const { return step_; }  // index of the next step; num_steps() when the sample is done
  int first_step() const { return first_step_; }
  // Leaves out the steps before this one, 0 … num_steps() − 1. Called before the first Step; the first sample then has
  // the level of that step.
  void BeginAt(int step);
  // Returns the noise level of the sample before that step. After the last step, num_steps(), the sample is clean.
  NoiseLevel level(int step) const;
  bool done() const { return step_ >= num_steps(); }
  double timestep() const { return timestep(step_); }  // the model's input at the next step; not when done
  double timestep(int step) const;                     // of the given step, 0 … num_steps() − 1
  double init_noise_sigma() const { return schedule_.init_noise_sigma; }  // scales the initial, standard normal sample
  const Schedule& schedule() const { return schedule_; }

  // Whether the next Step uses its noise argument.
  virtual bool needs_noise() const { return false; }

  // Whether Step computes something over the whole image. If not, each element of its result depends only on the same
  // element of its inputs, so parts of an image can be updated by separate samplers.
  bool reads_whole_image() const {
    const auto* thresholding = config_.Find<Thresholding>();
    return thresholding != nullptr && thresholding->thresholding;
  }

  // The tensors of a multistep solver's history, with the sample's shape or undefined, for code that splits an image
  // into parts or joins them.
  std::array<at::Tensor*, 2> history() { return {&history_[0], &history_[1]}; }

  // Returns the model's input at the next step, computed from the sample; same shape and dtype.
  virtual at::Tensor ScaleInput(const at::Tensor& sample) const { return sample; }

  // Returns the sample at the next noise level, computed from the sum of the predictions, and advances by one step. All
  // tensors have one shape, batch first; `noise` is standard normal and may be undefined unless needs_noise(). Computed
  // in fp64 if the sample is fp64, otherwise in fp32, and returned in the sample's dtype, on its device. `state` is the
  // state of kernels::WeightedSums for the result; undefined if it is not needed. Throws c10::Error when done or if
  // shapes differ.
  at::Tensor Step(const at::Tensor& sample, std::span<const WeightedPrediction> predictions, const at::Tensor& noise,
                  const at::Tensor& state = {});
  at::Tensor Step(const at::Tensor& sample, const at::Tensor& prediction, const at::Tensor& noise) {
    const WeightedPrediction all{.prediction = prediction};
    return Step(sample, std::span(&all, 1), noise);
  }

 protected:
  Sampler(SamplerConfig config, Schedule schedule) : config_(std::move(config)), schedule_(std::move(schedule)) {}
  Sampler(const Sampler&) = default;

  virtual NoiseLevel LevelBefore(int step) const = 0;
  // Returns the sums that the next step computes.
  virtual StepTerms TermsOfStep() const = 0;
  // Applies clipping or thresholding to a predicted sample.
  virtual at::Tensor Limit(const at::Tensor& x0) const { return x0; }

  const SamplerConfig& config() const { return config_; }
  // The level before the next step (0) and after it (1).
  double sigma(int ahead) const { return schedule_.sigmas[step_ + ahead]; }

 private:
  SamplerConfig config_;
  Schedule schedule_;
  at::Tensor history_[2];  // newest first
  int first_step_ = 0;
  int step_ = 0;
};

}  // namespace tessera::runtime
