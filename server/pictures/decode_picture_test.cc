#include "server/pictures/decode_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lcms2.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "server/pictures/color_profile.h"
#include "server/pictures/picture_pixels.h"

namespace tessera::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kFolder[] = "tests/pictures/uploads/";

std::string FileBytes(const std::string& name) {
  std::ifstream in(kFolder + name, std::ios::binary);
  EXPECT_TRUE(in.is_open()) << name;
  return {std::istreambuf_iterator<char>(in), {}};
}

// A line of expected.txt, which tests/pictures/make_uploads.py describes.
struct Expected {
  std::string name;
  int width = 0, height = 0, channels = 0, allowed = 0;
  std::vector<uint8_t> bytes;
};

std::vector<Expected> AllExpected() {
  std::vector<Expected> all;
  std::ifstream in(std::string(kFolder) + "expected.txt");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    Expected expected;
    std::string hex;
    words >> expected.name >> expected.width >> expected.height >> expected.channels >> expected.allowed >> hex;
    for (size_t i = 0; i + 1 < hex.size(); i += 2) {
      expected.bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    }
    all.push_back(std::move(expected));
  }
  return all;
}

TEST(UploadedPictures, HaveThePixelsThatPillowReads) {
  const std::vector<Expected> all = AllExpected();
  ASSERT_EQ(all.size(), 47U);
  for (const Expected& expected : all) {
    const absl::StatusOr<DecodedPicture> picture = DecodePicture(FileBytes(expected.name), {});
    ASSERT_TRUE(picture.ok()) << expected.name << ": " << picture.status();
    const control::Frames& frames = picture->frames;
    EXPECT_EQ(frames.width, expected.width) << expected.name;
    EXPECT_EQ(frames.height, expected.height) << expected.name;
    EXPECT_EQ(frames.channels, expected.channels) << expected.name;
    ASSERT_EQ(frames.bytes.size(), expected.bytes.size()) << expected.name;
    int worst = 0;
    for (size_t i = 0; i < frames.bytes.size(); ++i) {
      worst = std::max(worst, std::abs(int{frames.bytes[i]} - int{expected.bytes[i]}));
    }
    EXPECT_LE(worst, expected.allowed) << expected.name;
  }
}

TEST(UploadedPictures, StateTheFactsOfTheirFiles) {
  const auto facts = [](const std::string& name) { return DecodePicture(FileBytes(name), {})->facts; };
  EXPECT_EQ(facts("rgb.png"), PictureFacts{});
  EXPECT_EQ(facts("palette_transparent.png"), PictureFacts{.had_alpha = true});
  EXPECT_EQ(facts("animated.png"), PictureFacts{.animated = true});
  EXPECT_EQ(facts("wide_profile_alpha.png"), (PictureFacts{.had_alpha = true, .had_profile = true}));
  EXPECT_EQ(facts("cmyk.jpg"), PictureFacts{.format = ImageFormat::kJpeg});
  EXPECT_EQ(facts("wide_profile.jpg"), (PictureFacts{.format = ImageFormat::kJpeg, .had_profile = true}));
  EXPECT_EQ(facts("animated.webp"), (PictureFacts{.format = ImageFormat::kWebp, .animated = true}));
  EXPECT_EQ(facts("lossy_alpha.webp"), (PictureFacts{.format = ImageFormat::kWebp, .had_alpha = true}));
}

TEST(UploadedPictures, KeepTheirPixelsWhereTheProfileIsSrgb) {
  const absl::StatusOr<DecodedPicture> picture = DecodePicture(FileBytes("srgb_profile.png"), {});
  ASSERT_TRUE(picture.ok()) << picture.status();
  EXPECT_THAT(std::vector<uint8_t>(picture->frames.bytes.begin(), picture->frames.bytes.begin() + 6),
              ElementsAre(60, 40, 200, 68, 40, 196));
}

TEST(UploadedPictures, MoveColoursWhereTheProfileIsWide) {
  const control::Frames plain = DecodePicture(FileBytes("srgb_profile.png"), {})->frames;
  const control::Frames converted = DecodePicture(FileBytes("wide_profile.png"), {})->frames;
  ASSERT_EQ(plain.bytes.size(), converted.bytes.size());
  int worst = 0;
  for (size_t i = 0; i < plain.bytes.size(); ++i) {
    worst = std::max(worst, std::abs(int{plain.bytes[i]} - int{converted.bytes[i]}));
  }
  EXPECT_GT(worst, 10);
}

TEST(UploadedPictures, StayWithinTheLimitsOfTheCaller) {
  const std::string file = FileBytes("rgb.png");  // 19 x 13
  EXPECT_TRUE(DecodePicture(file, {.file_bytes = file.size(), .side = 19, .pixels = 19 * 13}).ok());
  EXPECT_THAT(DecodePicture(file, {.file_bytes = file.size() - 1}).status().message(), HasSubstr("bytes"));
  EXPECT_THAT(DecodePicture(file, {.side = 18}).status().message(), HasSubstr("a side may have at most 18"));
  EXPECT_THAT(DecodePicture(file, {.pixels = 19 * 13 - 1}).status().message(), HasSubstr("at most 246 are decoded"));
}

// A profile of ink that prints nothing but white and black: lightness is 100 without ink and 0 otherwise.
std::string InkProfile() {
  const cmsHPROFILE profile = cmsCreateProfilePlaceholder(nullptr);
  cmsSetProfileVersion(profile, 2.1);
  cmsSetDeviceClass(profile, cmsSigOutputClass);
  cmsSetColorSpace(profile, cmsSigCmykData);
  cmsSetPCS(profile, cmsSigLabData);
  cmsPipeline* const pipeline = cmsPipelineAlloc(nullptr, 4, 3);
  cmsStage* const grid = cmsStageAllocCLut16bit(nullptr, 2, 4, 3, nullptr);
  const auto fill = [](const cmsUInt16Number* in, cmsUInt16Number* out, void*) -> cmsInt32Number {
    const bool ink = in[0] > 0x7FFF || in[1] > 0x7FFF || in[2] > 0x7FFF || in[3] > 0x7FFF;
    out[0] = ink ? 0 : 0xFF00;  // Lab of version 2: 0xFF00 is 100, 0x8000 neutral
    out[1] = out[2] = 0x8000;
    return 1;
  };
  cmsStageSampleCLut16bit(grid, fill, nullptr, 0);
  cmsPipelineInsertStage(pipeline, cmsAT_END, grid);
  cmsWriteTag(profile, cmsSigAToB0Tag, pipeline);
  cmsUInt32Number size = 0;
  cmsSaveProfileToMem(profile, nullptr, &size);
  std::string bytes(size, '\0');
  cmsSaveProfileToMem(profile, bytes.data(), &size);
  cmsPipelineFree(pipeline);
  cmsCloseProfile(profile);
  return bytes;
}

TEST(ColorProfile, ConvertsInkByItsProfile) {
  control::Frames image{.width = 3, .height = 1, .channels = 4, .bytes = {0, 0, 0, 0, 0, 0, 0, 255, 255, 0, 0, 0}};
  const absl::Status converted = ConvertToSrgb(InkProfile(), SourceColor::kCmyk, image);
  ASSERT_TRUE(converted.ok()) << converted;
  EXPECT_EQ(image.channels, 3);
  EXPECT_THAT(image.bytes, ElementsAre(255, 255, 255, 0, 0, 0, 0, 0, 0));
}

TEST(ColorProfile, IsRefusedForPixelsOfAnotherKind) {
  control::Frames image{.width = 1, .height = 1, .bytes = {1, 2, 3}};
  EXPECT_THAT(ConvertToSrgb(InkProfile(), SourceColor::kRgb, image).message(), HasSubstr("does not fit"));
  EXPECT_THAT(ConvertToSrgb("nonsense", SourceColor::kRgb, image).message(), HasSubstr("damaged"));
  EXPECT_THAT(image.bytes, ElementsAre(1, 2, 3));
}

TEST(ColorProfile, MixesInkWithoutAProfileAsThePaperReflects) {
  control::Frames image{
      .width = 4, .height = 1, .channels = 4, .bytes = {0, 0, 0, 0, 255, 0, 0, 0, 0, 255, 0, 127, 10, 20, 30, 40}};
  ConvertInkToRgb(image);
  EXPECT_EQ(image.channels, 3);
  EXPECT_THAT(image.bytes, ElementsAre(255, 255, 255, 0, 255, 255, 128, 0, 128, 207, 198, 190));
}

}  // namespace
}  // namespace tessera::server
