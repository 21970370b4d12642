#include "models/autoencoder/latent_norm.h"

#include <gtest/gtest.h>

#include "tests/support/random_tensor.h"

namespace tessera::models {
namespace {

constexpr double kMeans[] = {0.5, -2, 0.125}, kDeviations[] = {2, 0.25, 3};
constexpr double kEps = 1e-4;

// Expects that channel c of the normalised latents is (z[c] − mean[c]) / deviation[c], and that Invert returns z.
void ExpectOfChannels(const LatentNorm& norm) {
  const at::Tensor z = Random({2, 3, 4, 5}, 1), latents = norm.Apply(z);
  ASSERT_EQ(latents.sizes(), z.sizes());
  for (int64_t c = 0; c < 3; ++c) {
    const at::Tensor expected = (z.select(1, c) - kMeans[c]) / kDeviations[c];
    EXPECT_LT((latents.select(1, c) - expected).abs().max().item<double>(), 1e-14) << c;
    const at::Tensor of_deviation = norm.ApplyToDeviation(z).select(1, c);
    EXPECT_LT((of_deviation - z.select(1, c) / kDeviations[c]).abs().max().item<double>(), 1e-14) << c;
  }
  EXPECT_LT((norm.Invert(latents) - z).abs().max().item<double>(), 1e-14);
}

TEST(LatentNormTest, EachChannelHasItsMeanAndDeviation) {
  ExpectOfChannels(
      LatentNorm({std::begin(kMeans), std::end(kMeans)}, {std::begin(kDeviations), std::end(kDeviations)}));
}

TEST(LatentNormTest, BatchNormalisationReadsItsRunningStatistics) {
  ParamTable table(at::kDouble, at::kCPU);
  const LatentNorm norm(ParamScope(table) / "bn", 3, kEps);
  ASSERT_EQ(table.params().size(), 2);
  EXPECT_EQ(table.params()[0].spec.name, "bn.running_mean");
  EXPECT_EQ(table.params()[1].spec.name, "bn.running_var");
  for (int64_t c = 0; c < 3; ++c) {
    table.params()[0].Value()[c] = kMeans[c];
    table.params()[1].Value()[c] = kDeviations[c] * kDeviations[c] - kEps;
  }
  ExpectOfChannels(norm);
}

// Half-precision latents are computed in single precision and rounded once.
TEST(LatentNormTest, HalfPrecisionIsRoundedOnce) {
  const LatentNorm norm({0.1, 0.2}, {3, 7});
  const at::Tensor z = Random({1, 2, 3, 3}, 2).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(norm.Apply(z), norm.Apply(z.to(at::kFloat)).to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(norm.Invert(z), norm.Invert(z.to(at::kFloat)).to(at::kBFloat16)));
}

}  // namespace
}  // namespace tessera::models
