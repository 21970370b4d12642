// Every random number of a generation. LibTorch-free.
//
// Noise is a pure function of (seed, purpose, step, index), so it is the same on every mesh, for every batch position,
// patch count, restart and device: it is made on the host, in fp64, and rounded once by whoever stores it.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace tessera::runtime {

// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Keeps the streams of one seed apart. Values are part of what a seed means: never change one.
enum class NoisePurpose : uint32_t {
  kInitialLatents = 0,
  kSampler = 1,
  kTrainingNoise = 2,        // that a sample is mixed with
  kTrainingLevel = 3,        // how much of it, as a uniform number
  kTrainingNormalLevel = 4,  // the same as a normal one
  kCaptionDropout = 5,
  kAutoencoderSample = 6,  // of the distribution that the autoencoder encodes an image to
  kAdapterFactors = 7,     // that a LoRA starts from
  kInitialWeights = 8,     // that a model without training has
};

struct NoiseKey {
  uint64_t seed = 0;
  NoisePurpose purpose = NoisePurpose::kInitialLatents;
  uint32_t step = 0;
};

// Fills `out` with standard normal values of the indices first, first + 1, … of that stream; the index counts the
// values of one image's unpacked latents [channels, height, width]. Box-Muller on 53-bit uniforms, two values a block.
void FillNormal(const NoiseKey& key, uint64_t first, std::span<double> out);

}  // namespace tessera::runtime
