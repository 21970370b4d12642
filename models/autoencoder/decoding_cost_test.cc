#include "models/autoencoder/decoding_cost.h"

#include <gtest/gtest.h>

#include "control/model/model_cost.h"
#include "models/autoencoder/autoencoder_config.h"
#include "models/autoencoder/qwen_autoencoder_config.h"

namespace tessera::models {
namespace {

template <class Config = AutoencoderConfig>
control::ModelCost CostOf(const Config& config) {
  control::ModelCost cost;
  DescribeDecoding(DecoderOf(config), cost);
  return cost;
}

// 640 values of a pixel in Stable Diffusion's plan and 160 in the embedded model's were measured in main memory.
TEST(DecodingCostTest, TheFirstResidualOfTheFinestLevelHasMostValues) {
  EXPECT_EQ(CostOf({.widths = {128, 256, 512, 512}, .layers_per_block = 2}).decode_values_per_pixel, 640);
  EXPECT_EQ(CostOf({.widths = {32, 64, 64}}).decode_values_per_pixel, 160);
  EXPECT_EQ(CostOf({.widths = {8, 8, 512}}).decode_values_per_pixel, (512 + 3 * 8) / 4.0) << "of a coarser level";
}

// By hand, weights of one 3 x 3 convolution for each pair of channels: a level of width 2 with two residual blocks of
// two convolutions each, the four of the middle and its projections, the first convolution and the last.
TEST(DecodingCostTest, CountsEveryConvolutionOfADecoderOfOneLevel) {
  const double by_hand = 9 * (4 * 4 + 4 * 4) + 4 * 4 + 9 * 4 * 2 + 9 * 2 * 3 + 4 * 4;
  EXPECT_EQ(CostOf({.widths = {2}}).decode_flops_per_pixel, 2 * by_hand);
  EXPECT_EQ(CostOf({.widths = {2}, .post_quant_conv = false, .mid_attention = false}).decode_flops_per_pixel,
            2 * (by_hand - 4 * 4 - 4 * 4));
}

TEST(DecodingCostTest, OfStableDiffusionsPlanAre473MillionMultiplyAddsForAPixel) {
  const AutoencoderConfig config = {.widths = {128, 256, 512, 512}, .layers_per_block = 2};
  EXPECT_NEAR(CostOf(config).decode_flops_per_pixel, 9.46e6, 0.01e6);
}

TEST(DecodingCostTest, IsThatOfTheDecodersWidths) {
  const AutoencoderConfig alike = {.widths = {4, 8}}, wider = {.widths = {2, 2}, .decoder_widths = {4, 8}};
  EXPECT_EQ(CostOf(wider).decode_flops_per_pixel, CostOf(alike).decode_flops_per_pixel);
  EXPECT_EQ(CostOf(wider).decode_values_per_pixel, CostOf(alike).decode_values_per_pixel);
}

// By hand, weights of one 3 x 3 convolution for each pair of channels. Coarse level of 4 channels: two residual blocks
// of two convolutions, and an enlargement to 2 channels; the latter is counted for its four pixels. Fine level of 2
// channels: the same residual blocks.
TEST(DecodingCostOfQwenImageTest, CountsEveryConvolutionOfADecoderOfTwoLevels) {
  const double coarse = 9 * (4 * 4 * 4) + 4 * 9 * (4 * 2), fine = 9 * (4 * 2 * 2);
  const double of_latent = 3 * 3 + 9 * 3 * 4 + 9 * (4 * 4 * 4) + 4 * 4 * 4, last = 9 * 2 * 3;
  const QwenAutoencoderConfig config = {.latent_channels = 3, .width = 2, .multipliers = {1, 2}, .residuals = 1};
  EXPECT_EQ(CostOf(config).decode_flops_per_pixel, 2 * (fine + last + (coarse + of_latent) / 4));
}

// The published decoder has 96, 192, 384 and 384 channels.
TEST(DecodingCostOfQwenImageTest, TheFirstResidualOfTheFinestLevelHasMostValues) {
  EXPECT_EQ(CostOf(QwenAutoencoderConfig{.multipliers = {1, 2, 4, 4}}).decode_values_per_pixel, 96 + 3 * 96);
}

}  // namespace
}  // namespace tessera::models
