#include <gtest/gtest.h>

#include "tests/support/noise_correlation.h"
#include "tests/support/planted_bug.h"

namespace tessera::runtime {
namespace {

TEST(PlantedSeedReuseTest, IsSeenAsCorrelatedSteps) {
  const PlantedBug planted("seed_reuse");
  const NoisePurpose sampler = NoisePurpose::kSampler;
  EXPECT_GT(Correlation({.seed = 1, .purpose = sampler, .step = 3}, {.seed = 1, .purpose = sampler, .step = 4}), 0.9);
}

}  // namespace
}  // namespace tessera::runtime
