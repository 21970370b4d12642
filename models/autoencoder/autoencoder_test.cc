// What every class of autoencoders guarantees for an image, whatever its networks.
#include "models/autoencoder/autoencoder.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "absl/cleanup/cleanup.h"
#include "control/model/model_cost.h"
#include "tests/support/opened_autoencoder.h"
#include "tests/support/tensor_bytes.h"

namespace tessera::models {
namespace {

class AutoencoderTest : public testing::TestWithParam<const char*> {
 protected:
  static LatentPosterior Encoded(const OpenedAutoencoder& opened, const at::Tensor& image) {
    const c10::InferenceMode no_gradients;
    parallel::SingleRank one;
    parallel::LocalAttention attention;
    return opened.autoencoder->Encode(image, {.attention = attention, .tensor = one, .world = one});
  }
};

TEST_P(AutoencoderTest, ADecodedImageHasTheFactorOfItsConfiguration) {
  const OpenedAutoencoder opened(GetParam(), at::kFloat);
  const at::Tensor image = opened.DecodeSerially(opened.Latents(3, 5));
  EXPECT_EQ(image.sizes(), at::IntArrayRef({2, 3, 3 * opened.config.factor, 5 * opened.config.factor}));
}

TEST_P(AutoencoderTest, AnImageIsEncodedAsTheLatentsThatDecodingTakes) {
  const OpenedAutoencoder opened(GetParam(), at::kDouble);
  const LatentPosterior encoded = Encoded(opened, opened.Image(3, 2));
  EXPECT_EQ(encoded.mean.sizes(), opened.Latents(3, 2).sizes());
  EXPECT_EQ(encoded.deviation.sizes(), encoded.mean.sizes());
}

// On the host every image and every latent is the same bit for bit, whatever the number of threads.
TEST_P(AutoencoderTest, ThreadsChangeNoBit) {
  const int before = at::get_num_threads();
  const absl::Cleanup restore = [before] { at::set_num_threads(before); };
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const OpenedAutoencoder opened(GetParam(), dtype);
    const at::Tensor latents = opened.Latents(5, 3), image = opened.Image(3, 4);
    at::set_num_threads(1);
    const at::Tensor decoded = opened.DecodeSerially(latents), encoded = opened.EncodeSerially(image);
    for (const int threads : {2, 3, 7}) {
      at::set_num_threads(threads);
      EXPECT_TRUE(at::equal(opened.DecodeSerially(latents), decoded)) << dtype << " with " << threads << " threads";
      EXPECT_TRUE(at::equal(opened.EncodeSerially(image), encoded)) << dtype << " with " << threads << " threads";
    }
  }
}

TEST_P(AutoencoderTest, OtherImagesOfABatchChangeNoBit) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const OpenedAutoencoder opened(GetParam(), dtype);
    const at::Tensor latents = opened.Latents(5, 3), image = opened.Image(3, 4);
    const at::Tensor decoded = opened.DecodeSerially(latents), encoded = opened.EncodeSerially(image);
    for (int64_t i = 0; i < latents.size(0); ++i) {
      EXPECT_TRUE(at::equal(opened.DecodeSerially(latents.narrow(0, i, 1)), decoded.narrow(0, i, 1))) << dtype;
      EXPECT_TRUE(at::equal(opened.EncodeSerially(image.narrow(0, i, 1)), encoded.narrow(1, i, 1))) << dtype;
    }
  }
}

// The bands are so low that the temporaries of one are small.
TEST_P(AutoencoderTest, DecodingTakesTheMemoryThatItsDescriptionStates) {
  constexpr int64_t kSide = 512, kBandBytes = int64_t{1} << 20;
  const OpenedAutoencoder opened(GetParam(), at::kFloat);
  control::ModelCost cost;
  opened.config.describe_decoding(cost);
  const at::Tensor latents = opened.Latents(kSide / opened.config.factor, kSide / opened.config.factor).narrow(0, 0, 1);
  parallel::SingleRank one;
  const TensorBytes bytes;
  opened.Decode(latents, one, kBandBytes);
  const double stated = cost.decode_values_per_pixel * kSide * kSide * sizeof(float);
  EXPECT_GT(static_cast<double>(bytes.peak()), 0.7 * stated);
  EXPECT_LE(static_cast<double>(bytes.peak()), stated + static_cast<double>(control::kBandTemporaries * kBandBytes));
}

INSTANTIATE_TEST_SUITE_P(Classes, AutoencoderTest, testing::Values("published_shape", "flux2", "qwen_image"),
                         [](const auto& info) { return info.param; });

TEST(ClassesOfAutoencodersTest, OnlyThatOfFlux2DrawsNoLatents) {
  for (const SmallAutoencoder& small : kSmallAutoencoders) {
    const OpenedAutoencoder opened(std::string(small.name), at::kDouble);
    parallel::SingleRank one;
    parallel::LocalAttention attention;
    const LatentPosterior encoded =
        opened.autoencoder->Encode(opened.Image(2, 2), {.attention = attention, .tensor = one, .world = one});
    EXPECT_EQ(encoded.deviation.abs().max().item<double>() == 0, small.class_name == "AutoencoderKLFlux2")
        << small.name;
  }
}

TEST(ClassesOfAutoencodersTest, OnlyThatOfQwenImageLimitsTheImage) {
  for (const SmallAutoencoder& small : kSmallAutoencoders) {
    const OpenedAutoencoder opened(std::string(small.name), at::kDouble);
    const double largest = opened.DecodeSerially(opened.Latents(2, 2)).abs().max().item<double>();
    if (small.class_name == "AutoencoderKLQwenImage") {
      EXPECT_EQ(largest, 1);
    } else {
      EXPECT_GT(largest, 1) << small.name;
    }
  }
}

}  // namespace
}  // namespace tessera::models
