#include "runtime/training/sample_noise.h"

#include <array>
#include <span>

#include "base/macros/planted.h"

namespace tessera::runtime {
namespace {

// Separates the seeds of samples from everything else that Philox derives from a seed.
constexpr uint32_t kSampleSeed = 0x53414D50;

}  // namespace

NoiseKey StreamOf(const SampleKey& key, NoisePurpose purpose) {
  const std::array<uint32_t, 4> bits =
      Philox4x32({static_cast<uint32_t>(key.sample), static_cast<uint32_t>(static_cast<uint64_t>(key.sample) >> 32),
                  static_cast<uint32_t>(key.epoch), kSampleSeed},
                 {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
  return {.seed = uint64_t{bits[1]} << 32 | bits[0], .purpose = purpose};
}

double UniformOf(const NoiseKey& key, uint64_t index) {
  const std::array<uint32_t, 4> bits = Philox4x32(
      {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), key.step, static_cast<uint32_t>(key.purpose)},
      {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
  return static_cast<double>((uint64_t{bits[0]} << 21) ^ (bits[1] >> 11)) * 0x1p-53;
}

at::Tensor NormalOf(const NoiseKey& key, at::IntArrayRef shape, at::ScalarType dtype) {
  const at::Tensor values = at::empty(shape, at::kDouble);
  FillNormal(key, 0, {values.mutable_data_ptr<double>(), static_cast<size_t>(values.numel())});
  return values.to(dtype);
}

LevelDraw DrawLevel(const SampleKey& key) {
  LevelDraw draw{.uniform = UniformOf(StreamOf(key, NoisePurpose::kTrainingLevel), 0)};
  FillNormal(StreamOf(key, NoisePurpose::kTrainingNormalLevel), 0, std::span(&draw.normal, 1));
  return draw;
}

LevelDraw DrawEvenLevel(uint64_t seed, int64_t visit) {
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;  // the fractional part of the golden ratio, in units of 2^-64
  constexpr int64_t kOfNoSample = -1;
  const double start = UniformOf(StreamOf({.seed = seed, .sample = kOfNoSample}, NoisePurpose::kTrainingLevel), 0);
  const uint64_t place = static_cast<uint64_t>(start * 0x1p64) + static_cast<uint64_t>(visit) * kGoldenRatio;
  // 52 bits and the middle of a cell, so that it is neither 0 nor 1.
  const double uniform = (static_cast<double>(place >> 12) + 0.5) * 0x1p-52;
  return {.normal = at::special_ndtri(at::scalar_tensor(uniform, at::kDouble)).item<double>(), .uniform = uniform};
}

bool DropsCaption(const SampleKey& key, double rate) {
  return UniformOf(StreamOf(key, NoisePurpose::kCaptionDropout), 0) < rate;
}

}  // namespace tessera::runtime
