#include "runtime/denoising/noise.h"

#include <cmath>
#include <numbers>

#include "base/macros/planted.h"

namespace tessera::runtime {
namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

// Returns a number in (0, 1], whose logarithm is finite.
double Uniform(uint32_t high, uint32_t low) {
  const uint64_t bits = (uint64_t{high} << 21) ^ (low >> 11);
  return static_cast<double>(bits + 1) * 0x1p-53;
}

// Returns the values of indices 2·block and 2·block + 1.
std::array<double, 2> NormalPair(const NoiseKey& key, uint64_t block) {
  const uint32_t step = base::Planted("seed_reuse") ? 0 : key.step;
  const std::array<uint32_t, 4> counter = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), step,
                                           static_cast<uint32_t>(key.purpose)};
  const std::array<uint32_t, 4> bits =
      Philox4x32(counter, {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
  const double radius = std::sqrt(-2 * std::log(Uniform(bits[0], bits[1])));
  const double angle = 2 * std::numbers::pi * Uniform(bits[2], bits[3]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{kMultiplier0} * counter[0], product1 = uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

void FillNormal(const NoiseKey& key, uint64_t first, std::span<double> out) {
  for (size_t i = 0; i < out.size();) {
    const uint64_t index = first + i;
    const std::array<double, 2> pair = NormalPair(key, index / 2);
    for (uint64_t half = index % 2; half < 2 && i < out.size(); ++half) out[i++] = pair[half];
  }
}

}  // namespace tessera::runtime
