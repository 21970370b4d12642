// Generates every random number of a training run, as a pure function of (seed of the run, sample, epoch, purpose,
// element): the same on every topology, for every order of the ranks and after every resumption.
//
// Philox derives a seed of each sample visit from the first three; its streams are those of runtime/denoising/noise.h.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "runtime/denoising/noise.h"
#include "runtime/training/density.h"

namespace tessera::runtime {

// One visit to one sample of the data.
struct SampleKey {
  uint64_t seed = 0;   // of the run
  int64_t sample = 0;  // number in the order of the data
  int64_t epoch = 0;
};

// Returns the key of a visit's stream for one purpose.
NoiseKey StreamOf(const SampleKey& key, NoisePurpose purpose);

// Returns number `index` of the stream in [0, 1), with 53 bits.
double UniformOf(const NoiseKey& key, uint64_t index);

// Returns standard normal numbers of the shape [channels, height, width] of one sample, on the host in `dtype` (fp32 or
// fp64), rounded once.
at::Tensor NormalOf(const NoiseKey& key, at::IntArrayRef shape, at::ScalarType dtype);

// Returns the random numbers from which the visit's level is drawn.
LevelDraw DrawLevel(const SampleKey& key);

// Like DrawLevel, but for visit number `visit` in the run's order of samples: uniform numbers of consecutive visits are
// spread evenly over [0, 1), as Kingma et al. (2021, Variational diffusion models, appendix I.1) draw the timesteps of
// a batch, but for batches of any size: they are a Kronecker sequence of the golden ratio from a random start. The
// normal number is the quantile of the uniform one.
LevelDraw DrawEvenLevel(uint64_t seed, int64_t visit);

// Whether the visit's caption is dropped, which happens at this rate.
bool DropsCaption(const SampleKey& key, double rate);

}  // namespace tessera::runtime
