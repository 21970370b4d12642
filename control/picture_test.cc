#include "control/picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace tessera::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FileOf(const std::string& name) {
  const absl::StatusOr<std::string> bytes = ReadPictureFile(absl::StrCat("tests/pictures/", name));
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.value_or("");
}

Image PictureOf(const std::string& name) {
  const absl::StatusOr<Image> image = DecodePicture(FileOf(name));
  EXPECT_TRUE(image.ok()) << name << ": " << image.status();
  return image.value_or(Image());
}

absl::StatusCode CodeOf(std::string_view bytes) {
  const absl::Status inspected = InspectPicture(bytes).status();
  // What does not decode for a reason of its structure is refused before.
  EXPECT_EQ(inspected, DecodePicture(bytes).status());
  return inspected.code();
}

TEST(PictureTest, APngIsReadWithItsSizeSaidBefore) {
  const absl::StatusOr<PictureSize> size = InspectPicture(FileOf("source.png"));
  ASSERT_TRUE(size.ok()) << size.status();
  EXPECT_EQ(*size, (PictureSize{40, 30}));
  const Image image = PictureOf("source.png");
  EXPECT_EQ(image.width, 40);
  EXPECT_EQ(image.height, 30);
  EXPECT_EQ(image.rgb.size(), 40u * 30 * 3);
}

// Against Pillow's exif_transpose. The decoders may differ by their inverse transforms; each file's colours are flat.
TEST(PictureTest, AJpegIsTurnedAsTheCameraSays) {
  for (int orientation = 1; orientation <= 8; ++orientation) {
    SCOPED_TRACE(orientation);
    const std::string name = absl::StrCat("orientation_", orientation);
    const Image image = PictureOf(name + ".jpg"), expected = PictureOf(name + ".png");
    ASSERT_EQ(image.width, expected.width);
    ASSERT_EQ(image.height, expected.height);
    const absl::StatusOr<PictureSize> size = InspectPicture(FileOf(name + ".jpg"));
    ASSERT_TRUE(size.ok()) << size.status();
    EXPECT_EQ(*size, (PictureSize{image.width, image.height}));
    int largest = 0;
    for (size_t i = 0; i < image.rgb.size(); ++i) largest = std::max(largest, std::abs(image.rgb[i] - expected.rgb[i]));
    EXPECT_LE(largest, 3);
  }
}

TEST(PictureTest, WhatIsTransparentLiesOnWhite) {
  EXPECT_THAT(PictureOf("transparent.png").rgb, ElementsAre(10, 20, 30, 255, 255, 255, 204, 204, 204));
}

TEST(PictureTest, SixteenBitsOfGreyBecomeEightOfEachColour) {
  EXPECT_THAT(PictureOf("deep_grey.png").rgb, ElementsAre(0, 0, 0, 0x12, 0x12, 0x12, 255, 255, 255));
}

TEST(PictureTest, AFileThatIsCutShortAnywhereIsRefused) {
  for (const std::string name : {"source.png", "orientation_5.jpg", "orientation_6.jpg"}) {
    const std::string bytes = FileOf(name);
    for (size_t size = 8; size < bytes.size(); ++size) {
      ASSERT_EQ(CodeOf(std::string_view(bytes).substr(0, size)), absl::StatusCode::kDataLoss) << name << " " << size;
    }
  }
}

TEST(PictureTest, ADamagedPngIsRefusedWhereverTheDamageIs) {
  const std::string bytes = FileOf("source.png");
  for (size_t at = 8; at < bytes.size(); at += 7) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    ASSERT_EQ(CodeOf(damaged), absl::StatusCode::kDataLoss) << at;
  }
}

TEST(PictureTest, OtherFilesAreNoPictures) {
  EXPECT_EQ(CodeOf(""), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf("GIF89a"), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(InspectPicture("text").status().message()), HasSubstr("neither a PNG nor a JPEG"));
}

TEST(PictureTest, APictureBeyondTheLimitsIsRefusedBeforeItIsDecoded) {
  // The header of a JPEG says 20000 x 100.
  std::string bytes = FileOf("orientation_1.jpg");
  const size_t frame = bytes.find("\xFF\xC0");
  ASSERT_NE(frame, std::string::npos);
  bytes[frame + 7] = static_cast<char>(20000 >> 8);
  bytes[frame + 8] = static_cast<char>(20000 & 0xFF);
  EXPECT_EQ(CodeOf(bytes), absl::StatusCode::kResourceExhausted);
  // Both sides are valid, and together they are too many pixels.
  for (const size_t side : {frame + 5, frame + 7}) bytes[side] = 0x3E;
  EXPECT_EQ(CodeOf(bytes), absl::StatusCode::kResourceExhausted);
}

TEST(PictureTest, AFileThatIsNotThereIsNamed) {
  const absl::Status status = ReadPictureFile("tests/pictures/nowhere.png").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tests/pictures/nowhere.png"));
}

}  // namespace
}  // namespace tessera::control
