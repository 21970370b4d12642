#include <gtest/gtest.h>

#include <vector>

#include "server/pictures/picture_pixels.h"
#include "tests/support/planted_bug.h"

namespace tessera::server {
namespace {

// A transparent, an opaque and a half transparent pixel.
bool MaskIsRight() {
  const control::Frames row{.width = 3, .height = 1, .channels = 4, .bytes = {1, 2, 3, 0, 4, 5, 6, 255, 7, 8, 9, 100}};
  return MaskOfAlpha(row).bytes == std::vector<uint8_t>({255, 255, 255, 0, 0, 0, 155, 155, 155});
}

TEST(PlantedMaskOfAlphaTest, AMaskWhoseAlphaIsIgnoredIsDetected) {
  EXPECT_TRUE(MaskIsRight());
  const PlantedBug planted("alpha_ignored");
  EXPECT_FALSE(MaskIsRight());
}

}  // namespace
}  // namespace tessera::server
