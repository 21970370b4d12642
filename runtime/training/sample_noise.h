// Every random number of a training run, a pure function of (seed of the run, sample, epoch, purpose, element): the
// same on every topology, for every order of the ranks and after every resumption.
//
// A sample's own seed is made of the first three by Philox, and its streams are those of runtime/denoising/noise.h.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "runtime/denoising/noise.h"
#include "runtime/training/density.h"

namespace tessera::runtime {

// One visit to one sample of the data.
struct SampleKey {
  uint64_t seed = 0;   // of the run
  int64_t sample = 0;  // of the data, as its order numbers them
  int64_t epoch = 0;
};

// The key of a visit's stream for one purpose.
NoiseKey StreamOf(const SampleKey& key, NoisePurpose purpose);

// In [0, 1), 53 bits: number `index` of the stream.
double UniformOf(const NoiseKey& key, uint64_t index);

// Standard normal numbers of the shape, [channels, height, width] of one sample, on the host in `dtype` (fp32 or fp64),
// rounded once.
at::Tensor NormalOf(const NoiseKey& key, at::IntArrayRef shape, at::ScalarType dtype);

// What the visit's level is drawn by.
LevelDraw DrawLevel(const SampleKey& key);

// The same of number `visit` of the run's order of samples, in place of its own draw: uniform numbers of consecutive
// visits lie evenly in [0, 1), as Kingma et al. (2021, Variational diffusion models, appendix I.1) draw the timesteps
// of a batch, but for batches of any size: they are a Kronecker sequence of the golden ratio from a random start. The
// normal number is the uniform one's quantile.
LevelDraw DrawEvenLevel(uint64_t seed, int64_t visit);

// Whether the visit's caption is dropped, which happens at this rate.
bool DropsCaption(const SampleKey& key, double rate);

}  // namespace tessera::runtime
