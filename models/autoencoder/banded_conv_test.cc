#include "models/autoencoder/banded_conv.h"

#include <gtest/gtest.h>

#include "tests/support/random_tensor.h"

namespace tessera::models {
namespace {

// Fills every parameter of a table with normal values.
void Fill(const ParamTable& table) {
  uint64_t seed = 100;
  for (const Param& param : table.params()) param.Value().copy_(Random(param.spec.shape, seed++));
}

class BandedConvTest : public testing::TestWithParam<std::tuple<Resample, int64_t>> {};

TEST_P(BandedConvTest, AnyBandHeightGivesTheUndividedLayer) {
  const auto [resample, band_bytes] = GetParam();
  ParamTable table(at::kDouble, at::kCPU);
  const GroupNorm norm(ParamScope(table) / "norm", 6, 3);
  const BandedConv conv(ParamScope(table) / "conv", 6, 5, {.resample = resample});
  Fill(table);
  const at::Tensor x = Random({2, 6, 14, 10}, 1);

  // The layer as defined, computed by LibTorch's operators.
  const at::Tensor weight = table.params()[2].Value(), bias = table.params()[3].Value();
  at::Tensor y = at::silu(at::group_norm(x, 3, table.params()[0].Value(), table.params()[1].Value(), 1e-6));
  if (resample == Resample::kUp) y = at::upsample_nearest2d(y, {28, 20});
  const at::Tensor expected = resample == Resample::kDown
                                  ? at::conv2d(at::constant_pad_nd(y, {0, 1, 0, 1}), weight, bias, 2)
                                  : at::conv2d(y, weight, bias, 1, 1);

  parallel::SingleRank one;
  const at::Tensor actual = conv.Forward(x, &norm, parallel::ImageRows({14}, one), band_bytes);
  ASSERT_EQ(actual.sizes(), expected.sizes());
  EXPECT_LT((actual - expected).abs().max().item<double>(), 1e-12 * expected.abs().max().item<double>());
}

// One row per band, a few rows with a short last band, the whole image.
INSTANTIATE_TEST_SUITE_P(AllResamplings, BandedConvTest,
                         testing::Combine(testing::Values(Resample::kNone, Resample::kUp, Resample::kDown),
                                          testing::Values(1, 2 * 6 * 10 * 8 * 5, int64_t{1} << 30)));

TEST(GroupNormTest, StatisticsOfALargeMeanKeepTheirDigits) {
  ParamTable table(at::kFloat, at::kCPU);
  const GroupNorm norm(ParamScope(table) / "norm", 4, 2);
  table.params()[0].Value().fill_(1);
  table.params()[1].Value().zero_();
  const at::Tensor x = (Random({1, 4, 32, 32}, 2) + 1000).to(at::kFloat);
  const at::Tensor expected = at::group_norm(x.to(at::kDouble), 2, {}, {}, 1e-6);
  parallel::SingleRank one;
  for (const int64_t band_bytes : {int64_t{1}, int64_t{1} << 30}) {
    // The offset is −mean/std = −1000 in fp32, so half a unit in its last place remains: 1000 · 2^-24.
    EXPECT_LT((norm.Measure(x, parallel::ImageRows({32}, one), band_bytes)(x, /*silu=*/false) - expected)
                  .abs()
                  .max()
                  .item<double>(),
              2e-4);
  }
}

}  // namespace
}  // namespace tessera::models
