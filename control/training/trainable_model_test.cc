#include "control/training/trainable_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::control {
namespace {

using ::testing::HasSubstr;

TEST(CheckTrainableTest, RefusesModelsThatAreTrainedOnMoreThanImagesAndCaptions) {
  EXPECT_TRUE(CheckTrainable({}).ok());
  EXPECT_TRUE(CheckTrainable(kStartsFromPicture).ok()) << "image to image needs no training";
  EXPECT_THAT(std::string(CheckTrainable(kFillsPicture).message()), HasSubstr("FLUX.1 Fill"));
  EXPECT_THAT(std::string(CheckTrainable(kKontextPictures).message()), HasSubstr("FLUX.1 Kontext"));
  EXPECT_THAT(std::string(CheckTrainable(kQwenEditPictures).message()), HasSubstr("Qwen-Image-Edit"));
  EXPECT_THAT(std::string(CheckTrainable(kQwenEditPlusPictures).message()), HasSubstr("so train Qwen-Image"));
  EXPECT_TRUE(CheckTrainable({.use = PictureInput::kReference, .most = 4, .fit = ReferenceFit::kFlux2}).ok())
      << "it makes images from text, too";
}

}  // namespace
}  // namespace tessera::control
