// The expected sizes are those of diffusers 0.42 and transformers 5; the bytes are those of torchvision 0.26.
#include "control/pictures/vision_processor.h"

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "control/pictures/made_up_frames.h"
#include "control/pictures/picture_input.h"
#include "control/pictures/reference_size.h"

namespace tessera::control {
namespace {

constexpr int64_t kMegapixel = 1 << 20;
constexpr ProcessorLimits kPublished{.max_pixels = 12845056};

PictureSize OfArea(int width, int height, int64_t area = kMegapixel) {
  return SizeOfArea({width, height}, area).value_or(PictureSize());
}

PictureSize Read(int width, int height, const ProcessorLimits& limits) {
  return ProcessorSize({width, height}, limits).value_or(PictureSize());
}

TEST(VisionProcessorTest, TheAreaIsReachedInMultiplesOf32) {
  EXPECT_EQ(OfArea(80, 80), (PictureSize{1024, 1024}));
  EXPECT_EQ(OfArea(151, 97), (PictureSize{1280, 832}));
  EXPECT_EQ(OfArea(151, 97, 384 * 384), (PictureSize{480, 320}));
}

TEST(VisionProcessorTest, ASideWithoutPixelsIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(SizeOfArea({16384, 1}, kMegapixel).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(SizeOfArea({0, 64}, kMegapixel).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(SizeOfArea({64, 64}, 0).status()));
}

TEST(VisionProcessorTest, TheVisionTowerReadsMultiplesOf28WithinTheLimits) {
  EXPECT_EQ(Read(1280, 832, kPublished), (PictureSize{1288, 840}));
  EXPECT_EQ(Read(1280, 832, {}), (PictureSize{1232, 784}));
  EXPECT_EQ(Read(151, 97, {.max_pixels = 12544}), (PictureSize{140, 84}));
  EXPECT_EQ(Read(42, 70, kPublished), (PictureSize{56, 56})) << "42 and 70 lie between two multiples";
  EXPECT_EQ(Read(1, 1, kPublished), (PictureSize{56, 56}));
}

TEST(VisionProcessorTest, APictureOf201To1IsRefused) {
  EXPECT_EQ(Read(2800, 14, kPublished), (PictureSize{812, 28}));
  EXPECT_TRUE(absl::IsInvalidArgument(ProcessorSize({201, 1}, kPublished).status()));
}

TEST(VisionProcessorTest, APictureOfItsOwnSizeIsNotFiltered) {
  const Frames picture{.width = 2, .height = 1, .bytes = {0, 100, 255, 7, 8, 9}};
  EXPECT_EQ(ResizeBicubic(picture, 2, 1)->bytes, picture.bytes);
}

TEST(VisionProcessorTest, AnEdgeOvershootsAndIsClipped) {
  Frames step{.width = 4, .height = 1, .channels = 1, .bytes = {40, 40, 200, 200}};
  EXPECT_EQ(ResizeBicubic(step, 8, 1)->bytes, (std::vector<uint8_t>{40, 36, 29, 73, 168, 211, 204, 200}));
  step.bytes = {0, 0, 255, 255};
  EXPECT_EQ(ResizeBicubic(step, 8, 1)->bytes, (std::vector<uint8_t>{0, 0, 0, 52, 203, 255, 255, 255}));
}

TEST(VisionProcessorTest, EditBeginsWithTheProportionsOfTheFirstPictureAndEditPlusWithThoseOfTheLast) {
  const PictureSize pictures[] = {{151, 97}, {80, 80}};
  EXPECT_EQ(SizeOfResult(ReferenceFit::kQwenEdit, pictures, false), (PictureSize{1280, 832}));
  EXPECT_EQ(SizeOfResult(ReferenceFit::kQwenEditPlus, pictures, false), (PictureSize{1024, 1024}));
}

TEST(VisionProcessorTest, OnlyEditPlusShowsTheTextEncoderASmallerPicture) {
  const Frames picture = NoiseFrame(151, 97, 3);
  EXPECT_EQ(FitPromptPicture(ReferenceFit::kQwenEdit, picture)->width, 1280);
  EXPECT_EQ(FitPromptPicture(ReferenceFit::kQwenEditPlus, picture)->width, 480);
  EXPECT_EQ(PromptTokensOf(ReferenceFit::kQwenEdit, {151, 97}), 46 * 30);
  EXPECT_EQ(PromptTokensOf(ReferenceFit::kQwenEditPlus, {151, 97}), 17 * 11);
  EXPECT_EQ(PromptTokensOf(ReferenceFit::kKontext, {151, 97}), 0);
}

TEST(VisionProcessorTest, APictureThatCannotBeReadIsRefusedByItsSize) {
  EXPECT_TRUE(CheckReference(ReferenceFit::kQwenEditPlus, {151, 97}).ok());
  const absl::Status refused = CheckReference(ReferenceFit::kQwenEdit, {10000, 40});
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_EQ(refused.message().substr(0, 5), " has ") << refused;
}

}  // namespace
}  // namespace tessera::control
