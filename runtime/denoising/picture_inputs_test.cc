#include "runtime/denoising/picture_inputs.h"

#include <gtest/gtest.h>

#include "control/pictures/picture_input.h"
#include "models/token_grid.h"

namespace tessera::runtime {
namespace {

TEST(PictureInputsTest, ALatentTakesTheValueOfItsFirstPixel) {
  const at::Tensor mask = at::ones({1, 1, 24, 16});
  mask[0][0][0][0] = 0;
  mask[0][0][8][8] = 0;
  mask[0][0][16][7] = 0;  // the first pixel of no latent
  const at::Tensor latents = MaskOfLatents(mask, control::MaskRule::kFirstPixel, 3, 2);
  EXPECT_TRUE(at::equal(latents, at::tensor({0.F, 1.F, 1.F, 0.F, 1.F, 1.F}).view({1, 1, 3, 2}))) << latents;
  EXPECT_THROW(MaskOfLatents(at::ones({1, 1, 20, 16}), control::MaskRule::kFirstPixel, 2, 2), c10::Error);
}

TEST(PictureInputsTest, ALatentOfFlux2TakesTheMeanOfTheFourPixelsInItsMiddle) {
  const at::Tensor mask = at::zeros({1, 1, 32, 16});
  mask[0][0][7][7] = 1;
  mask[0][0][8][7] = 1;
  mask[0][0][0][0] = 1;  // in no middle
  mask[0][0][16 + 8][8] = 1;
  const at::Tensor latents = MaskOfLatents(mask, control::MaskRule::kMiddlePixels, 2, 1);
  EXPECT_TRUE(at::equal(latents, at::tensor({0.5F, 0.25F}).view({1, 1, 2, 1}))) << latents;
}

TEST(PictureInputsTest, AFeatureOfFillIsOnePixelOfTheMask) {
  const at::Tensor mask = at::zeros({1, 1, 32, 32});
  mask[0][0][21][10] = 1;  // token (column 0, row 1), its latent (column 1, row 0), dx = 2, dy = 5
  const at::Tensor features = models::Patchify(MaskChannels(mask, 4, 4), 2);
  const at::Tensor expected = at::zeros({1, 4, 256});
  expected[0][2][4 * (8 * 5 + 2) + 2 * 0 + 1] = 1;
  EXPECT_TRUE(at::equal(features, expected));
  EXPECT_THROW(MaskChannels(at::zeros({1, 1, 24, 32}), 4, 4), c10::Error);
}

}  // namespace
}  // namespace tessera::runtime
