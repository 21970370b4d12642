#include "control/training/trainable_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::control {
namespace {

using ::testing::HasSubstr;

TEST(CheckTrainableTest, RefusesModelsThatAreTrainedOnMoreThanImagesAndCaptions) {
  EXPECT_TRUE(CheckTrainable(PictureInput::kNone).ok());
  EXPECT_TRUE(CheckTrainable(PictureInput::kStart).ok()) << "image to image needs no training";
  EXPECT_THAT(std::string(CheckTrainable(PictureInput::kFill).message()), HasSubstr("FLUX.1 Fill"));
  EXPECT_THAT(std::string(CheckTrainable(PictureInput::kReference).message()), HasSubstr("FLUX.1 Kontext"));
}

}  // namespace
}  // namespace tessera::control
