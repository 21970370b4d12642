#include "control/pictures/resample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "control/pictures/picture.h"

namespace tessera::control {
namespace {

Frames PictureOf(const std::string& name) {
  const absl::StatusOr<std::string> bytes = ReadPictureFile("tests/pictures/" + name);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  const absl::StatusOr<Frames> image = DecodePicture(bytes.value_or(""));
  EXPECT_TRUE(image.ok()) << image.status();
  return image.value_or(Frames());
}

// Pillow also rounds to 8 bits after the first of the two passes, which changes a value by at most one.
void ExpectNear(const Frames& image, const Frames& expected) {
  ASSERT_EQ(image.width, expected.width);
  ASSERT_EQ(image.height, expected.height);
  int largest = 0;
  for (size_t i = 0; i < image.bytes.size(); ++i)
    largest = std::max(largest, std::abs(image.bytes[i] - expected.bytes[i]));
  EXPECT_LE(largest, 1);
}

TEST(ResampleTest, EqualsPillowsLanczosInReductionEnlargementAndCrop) {
  const Frames source = PictureOf("source.png");
  ExpectNear(Resample(source, CoverBox(40, 30, 16, 16), 16, 16), PictureOf("centre_16x16.png"));
  ExpectNear(Resample(source, CoverBox(40, 30, 16, 24, 0), 16, 24), PictureOf("left_16x24.png"));
  ExpectNear(Resample(source, CoverBox(40, 30, 64, 48), 64, 48), PictureOf("larger_64x48.png"));
}

TEST(ResampleTest, TheSameSizeIsTheSamePicture) {
  const Frames source = PictureOf("source.png");
  EXPECT_EQ(Resample(source, CoverBox(40, 30, 40, 30), 40, 30).bytes, source.bytes);
}

TEST(ResampleTest, AFlatPictureStaysFlatAtItsEdges) {
  const Frames flat = {.width = 7, .height = 5, .bytes = std::vector<uint8_t>(7 * 5 * 3, 201)};
  const Frames result = Resample(flat, CoverBox(7, 5, 3, 11), 3, 11);
  EXPECT_EQ(result.bytes, std::vector<uint8_t>(3 * 11 * 3, 201));
}

TEST(ResampleTest, TheBoxHasTheProportionsAskedForAndTheFocusSaysWhichPart) {
  EXPECT_EQ(CoverBox(40, 30, 1, 1), (PictureBox{5, 0, 35, 30}));
  EXPECT_EQ(CoverBox(40, 30, 1, 1, 0), (PictureBox{0, 0, 30, 30}));
  EXPECT_EQ(CoverBox(40, 30, 1, 1, 1), (PictureBox{10, 0, 40, 30}));
  EXPECT_EQ(CoverBox(40, 30, 4, 1, 0.5, 1), (PictureBox{0, 20, 40, 30}));
}

}  // namespace
}  // namespace tessera::control
