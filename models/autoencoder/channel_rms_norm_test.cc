#include "models/autoencoder/channel_rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/random_tensor.h"

namespace tessera::models {
namespace {

constexpr int64_t kChannels = 6;

class ChannelRmsNormTest : public testing::Test {
 protected:
  ChannelRmsNormTest() { gamma().copy_(Random({kChannels, 1, 1, 1}, 1)); }

  at::Tensor gamma() const { return table_.params().front().Value(); }
  at::Tensor Normalised(const at::Tensor& x, bool silu) const {
    parallel::SingleRank one;
    return norm_.Measure(x, parallel::ImageRows({x.size(2)}, one), /*band_bytes=*/1)(x, silu);
  }

  ParamTable table_{at::kDouble, at::kCPU};
  ChannelRmsNorm norm_{ParamScope(table_) / "norm", kChannels, /*trailing=*/3};
};

TEST_F(ChannelRmsNormTest, DividesEachPixelByTheNormOfItsChannels) {
  const at::Tensor x = Random({2, kChannels, 3, 5}, 2);
  const at::Tensor norm = x.square().sum(1, /*keepdim=*/true).sqrt();
  const at::Tensor expected = x / norm * std::sqrt(static_cast<double>(kChannels)) * gamma().view({kChannels, 1, 1});
  EXPECT_LT((Normalised(x, /*silu=*/false) - expected).abs().max().item<double>(), 1e-14);
  EXPECT_LT((Normalised(x, /*silu=*/true) - at::silu(expected)).abs().max().item<double>(), 1e-14);
}

TEST_F(ChannelRmsNormTest, APixelOfZerosRemainsZero) {
  EXPECT_EQ(Normalised(at::zeros({1, kChannels, 2, 2}, at::kDouble), /*silu=*/true).abs().max().item<double>(), 0);
}

TEST_F(ChannelRmsNormTest, ItsParameterHasTheShapeInTheFile) {
  ASSERT_EQ(table_.params().size(), 1);
  EXPECT_EQ(table_.params()[0].spec.name, "norm.gamma");
  EXPECT_EQ(table_.params()[0].spec.shape, std::vector<int64_t>({kChannels, 1, 1, 1}));
}

}  // namespace
}  // namespace tessera::models
