// Generates every random number of a generation. LibTorch-free.
//
// Noise is a pure function of (seed, purpose, step, index), so it is the same on every mesh and device, for every batch
// position and patch count, and after a restart: it is generated on the host in fp64, and rounded once when it is
// stored.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace tessera::runtime {

// Computes Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Separates the streams of one seed. The values define the results of a seed and must never change.
enum class NoisePurpose : uint32_t {
  kInitialLatents = 0,
  kSampler = 1,
  kTrainingNoise = 2,        // mixed with a training sample
  kTrainingLevel = 3,        // the noise level of a training sample, as a uniform number
  kTrainingNormalLevel = 4,  // the noise level of a training sample, as a normal number
  kCaptionDropout = 5,
  kAutoencoderSample = 6,  // from the distribution that the autoencoder encodes an image to
  kAdapterFactors = 7,     // initial factors of a LoRA
  kInitialWeights = 8,     // initial weights of an untrained model
};

struct NoiseKey {
  uint64_t seed = 0;
  NoisePurpose purpose = NoisePurpose::kInitialLatents;
  uint32_t step = 0;
};

// Fills `out` with standard normal values for the indices first, first + 1, … of that stream; the index counts the
// values of one image's unpacked latents [channels, height, width]. Uses Box-Muller on 53-bit uniforms, two values per
// block.
void FillNormal(const NoiseKey& key, uint64_t first, std::span<double> out);

}  // namespace tessera::runtime
