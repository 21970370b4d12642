#include "control/pictures/picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "control/pictures/picture_frames.h"

namespace tessera::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FileOf(const std::string& name) {
  const absl::StatusOr<std::string> bytes = ReadPictureFile(absl::StrCat("tests/pictures/", name));
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.value_or("");
}

Frames PictureOf(const std::string& name) {
  const absl::StatusOr<Frames> image = DecodePicture(FileOf(name));
  EXPECT_TRUE(image.ok()) << name << ": " << image.status();
  return image.value_or(Frames());
}

absl::StatusCode CodeOf(std::string_view bytes) {
  const absl::Status inspected = InspectPicture(bytes).status();
  // Structural errors that prevent decoding are found without it.
  EXPECT_EQ(inspected, DecodePicture(bytes).status());
  return inspected.code();
}

TEST(PictureTest, APngIsReadWithItsSizeSaidBefore) {
  const absl::StatusOr<PictureSize> size = InspectPicture(FileOf("source.png"));
  ASSERT_TRUE(size.ok()) << size.status();
  EXPECT_EQ(*size, (PictureSize{40, 30}));
  const Frames image = PictureOf("source.png");
  EXPECT_EQ(image.width, 40);
  EXPECT_EQ(image.height, 30);
  EXPECT_EQ(image.bytes.size(), 40u * 30 * 3);
}

// The expected files are from Pillow's exif_transpose. The decoders may differ by their inverse transforms; each file's
// colours are flat.
TEST(PictureTest, AJpegIsTurnedAsTheCameraSays) {
  for (int orientation = 1; orientation <= 8; ++orientation) {
    SCOPED_TRACE(orientation);
    const std::string name = absl::StrCat("orientation_", orientation);
    const Frames image = PictureOf(name + ".jpg"), expected = PictureOf(name + ".png");
    ASSERT_EQ(image.width, expected.width);
    ASSERT_EQ(image.height, expected.height);
    const absl::StatusOr<PictureSize> size = InspectPicture(FileOf(name + ".jpg"));
    ASSERT_TRUE(size.ok()) << size.status();
    EXPECT_EQ(*size, (PictureSize{image.width, image.height}));
    int largest = 0;
    for (size_t i = 0; i < image.bytes.size(); ++i)
      largest = std::max(largest, std::abs(image.bytes[i] - expected.bytes[i]));
    EXPECT_LE(largest, 3);
  }
}

// The PNG with a chunk that contains this EXIF orientation inserted at offset `at`, where another chunk begins.
std::string WithExif(const std::string& png, size_t at, char orientation) {
  const std::string chunk = std::string("eXIfMM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0", 23) + orientation +
                            std::string("\0\0\0\0\0\0", 6);
  std::string sum, length(3, '\0');
  const uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(chunk.data()), chunk.size());
  for (int shift = 24; shift >= 0; shift -= 8) sum += static_cast<char>(crc >> shift);
  length += static_cast<char>(chunk.size() - 4);
  return png.substr(0, at) + length + chunk + sum + png.substr(at);
}

TEST(PictureTest, APngIsTurnedAsItsExifChunkSays) {
  const std::string png = FileOf("source.png");
  const Frames stored = PictureOf("source.png");
  const auto pixel = [](const Frames& image, int x, int y) {
    const uint8_t* at = image.bytes.data() + 3 * (static_cast<size_t>(y) * image.width + x);
    return std::vector<uint8_t>(at, at + 3);
  };
  // After the header, and before the end chunk.
  for (const size_t at : {size_t{33}, png.size() - 12}) {
    const absl::StatusOr<Frames> half = DecodePicture(WithExif(png, at, 3)),
                                 right = DecodePicture(WithExif(png, at, 6));
    ASSERT_TRUE(half.ok()) << half.status();
    ASSERT_TRUE(right.ok()) << right.status();
    EXPECT_EQ(*InspectPicture(WithExif(png, at, 6)), (PictureSize{30, 40}));
    for (int y = 0; y < 30; ++y) {
      for (int x = 0; x < 40; ++x) {
        ASSERT_EQ(pixel(*half, 39 - x, 29 - y), pixel(stored, x, y));
        ASSERT_EQ(pixel(*right, 29 - y, x), pixel(stored, x, y));
      }
    }
    EXPECT_EQ(DecodePicture(WithExif(png, at, 9))->bytes, stored.bytes);
  }
}

TEST(PictureTest, WhatIsTransparentLiesOnWhite) {
  EXPECT_THAT(PictureOf("transparent.png").bytes, ElementsAre(10, 20, 30, 255, 255, 255, 204, 204, 204));
}

TEST(PictureTest, SixteenBitsOfGreyBecomeEightOfEachColour) {
  EXPECT_THAT(PictureOf("deep_grey.png").bytes, ElementsAre(0, 0, 0, 0x12, 0x12, 0x12, 255, 255, 255));
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
  // Sets the size in the JPEG's header to 20000 x 100.
  std::string bytes = FileOf("orientation_1.jpg");
  const size_t frame = bytes.find("\xFF\xC0");
  ASSERT_NE(frame, std::string::npos);
  bytes[frame + 7] = static_cast<char>(20000 >> 8);
  bytes[frame + 8] = static_cast<char>(20000 & 0xFF);
  EXPECT_EQ(CodeOf(bytes), absl::StatusCode::kResourceExhausted);
  // Both sides are valid, but their product is too many pixels.
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
