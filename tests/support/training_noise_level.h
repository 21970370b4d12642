// TrainingNoiseLevel returns the level of the noise that a model is trained with at a timestep.
#pragma once

#include <cmath>
#include <cstddef>

#include "runtime/samplers/schedule.h"

namespace tessera {

// The timestep is an integer in 0 … num_train_timesteps - 1, for flow models any number in 0 … num_train_timesteps.
// Euler scales its samples differently: its alpha is 1.
inline runtime::NoiseLevel TrainingNoiseLevel(const runtime::SamplerConfig& config, double timestep) {
  if (runtime::IsFlow(config)) {
    const double sigma = timestep / static_cast<double>(config.num_train_timesteps);
    return {1 - sigma, sigma};
  }
  const double alpha = runtime::ExactAlphasCumprod(config).at(static_cast<size_t>(timestep));
  if (config.Find<runtime::EulerOptions>() != nullptr) return {1, std::sqrt((1 - alpha) / alpha)};
  return {std::sqrt(alpha), std::sqrt(1 - alpha)};
}

}  // namespace tessera
