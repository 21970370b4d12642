// The autoencoder on a device returns the host's image, computed from whole images in channels-last layout.
#include <gtest/gtest.h>

#include "tests/support/opened_autoencoder.h"
#include "tests/support/pretend_device.h"

namespace tessera::models {
namespace {

double RelativeError(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual - expected).abs().max() / expected.abs().max()).item<double>();
}

class AutoencoderOnDeviceTest : public testing::TestWithParam<const char*> {};

TEST_P(AutoencoderOnDeviceTest, DecodesTheHostsImage) {
  for (const auto& [dtype, tolerance] : {std::pair{at::kDouble, 1e-12}, {at::kFloat, 1e-5}}) {
    const OpenedAutoencoder host(GetParam(), dtype), device(GetParam(), dtype, kPretendDevice);
    const at::Tensor latents = host.Latents(9, 7);
    const at::Tensor expected = host.DecodeSerially(latents);
    const at::Tensor actual = device.DecodeSerially(latents.to(kPretendDevice));
    EXPECT_EQ(actual.device(), kPretendDevice);
    EXPECT_LE(RelativeError(actual.cpu(), expected), tolerance) << dtype;
    // Bands of one row give the same image.
    parallel::SingleRank one;
    EXPECT_LE(RelativeError(device.Decode(latents.to(kPretendDevice), one, /*band_bytes=*/1).cpu(), expected),
              tolerance);
  }
}

TEST_P(AutoencoderOnDeviceTest, EncodesTheHostsPosterior) {
  const c10::InferenceMode no_gradients;
  const OpenedAutoencoder host(GetParam(), at::kDouble), device(GetParam(), at::kDouble, kPretendDevice);
  parallel::SingleRank one;
  parallel::LocalAttention attention;
  const parallel::ForwardContext context{.attention = attention, .tensor = one, .world = one};
  const at::Tensor image = Random({1, 3, 32, 48}, 5);
  const Autoencoder::Posterior expected = host.autoencoder->EncodeInBands(image, context, BandBytesOn(at::kCPU));
  const Autoencoder::Posterior actual =
      device.autoencoder->EncodeInBands(image.to(kPretendDevice), context, BandBytesOn(kPretendDevice));
  EXPECT_LE(RelativeError(actual.mean.cpu(), expected.mean), 1e-12);
  EXPECT_LE(RelativeError(actual.log_variance.cpu(), expected.log_variance), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Autoencoders, AutoencoderOnDeviceTest,
                         testing::Values("flux_dev", "sd3", "flux2", "qwen_image"),
                         [](const auto& info) { return info.param; });

// 64 x 1024 pixels, which the host computes in bands.
TEST(LayerOnDeviceTest, IsOneBandWithItsChannelsLast) {
  const c10::InferenceMode no_gradients;
  constexpr int64_t kChannels = 32;
  parallel::SingleRank one;
  const parallel::ImageRows image({64}, one);
  for (const Resample resample : {Resample::kNone, Resample::kUp, Resample::kDown}) {
    ParamTable table(at::kFloat, kPretendDevice);
    const BandedConv conv(ParamScope(table) / "conv", kChannels, kChannels, {.resample = resample});
    const GroupNorm norm(ParamScope(table) / "norm", kChannels, 8);
    for (const Param& param : table.params()) {
      param.Value().copy_(Random(param.spec.shape, 3).to(at::kFloat).to(kPretendDevice));
    }
    table.PackForInference();
    const at::Tensor x = InOrderOf(Random({1, kChannels, 64, 1024}, 4).to(at::kFloat).to(kPretendDevice));
    const auto run = [&](int64_t band_bytes, at::Tensor& result) {
      const int64_t before = PretendDeviceCalls();
      result = conv.Forward(x, &norm, image, band_bytes);
      return PretendDeviceCalls() - before;
    };
    at::Tensor result, in_one, in_bands;
    EXPECT_EQ(run(BandBytesOn(kPretendDevice), result), run(int64_t{1} << 40, in_one));
    EXPECT_GT(run(int64_t{1} << 20, in_bands), 2 * run(BandBytesOn(kPretendDevice), result));
    for (const at::Tensor& made : {result, in_bands}) {
      EXPECT_TRUE(made.is_contiguous(at::MemoryFormat::ChannelsLast));
      EXPECT_LE(RelativeError(made.cpu(), in_one.cpu()), 1e-5);
    }
  }
}

}  // namespace
}  // namespace tessera::models
