#include "client/cli/output/contact_sheet.h"

#include <gtest/gtest.h>

namespace tessera::client {
namespace {

control::Frames Plain(int width, int height, uint8_t value) {
  return {
      .width = width, .height = height, .bytes = std::vector<uint8_t>(static_cast<size_t>(3 * width * height), value)};
}

int RedAt(const control::Frames& image, int x, int y) {
  return image.bytes[3 * static_cast<size_t>(y * image.width + x)];
}

TEST(ContactSheetTest, ShrinksToTheMeanOfWhatAPixelCovers) {
  control::Frames image = Plain(6, 4, 0);
  for (int y = 0; y < 4; ++y) {
    for (int x = 0; x < 6; ++x) image.bytes[3 * static_cast<size_t>(y * 6 + x)] = static_cast<uint8_t>(10 * x + y);
  }
  const control::Frames small = Shrink(image, 3, 2);
  ASSERT_EQ(small.bytes.size(), 18u);
  for (int y = 0; y < 2; ++y) {
    for (int x = 0; x < 3; ++x) EXPECT_EQ(RedAt(small, x, y), 20 * x + 5 + 2 * y + 1) << x << "," << y;  // .5 rounds up
  }
  EXPECT_EQ(Shrink(image, 6, 4).bytes, image.bytes);
  EXPECT_EQ(RedAt(Shrink(image, 1, 1), 0, 0), 27);  // 26.5
}

TEST(ContactSheetTest, HasAsManyRowsAsItNeeds) {
  for (const auto& [cells, columns, rows] : {std::tuple(1, 1, 1), {3, 3, 1}, {16, 16, 1}, {17, 16, 2}, {256, 16, 16}}) {
    const ContactSheet sheet(cells);
    EXPECT_EQ(sheet.image().width, columns * ContactSheet::kCell) << cells;
    EXPECT_EQ(sheet.image().height, rows * ContactSheet::kCell) << cells;
    EXPECT_EQ(sheet.image().bytes.size(), 3u * static_cast<size_t>(columns * rows) * 128 * 128);
  }
}

TEST(ContactSheetTest, ShowsTheFirstFrameWithoutAlpha) {
  control::Frames image = {.width = 2, .height = 2, .count = 2, .channels = 4, .bytes = {}};
  for (int i = 0; i < 8; ++i) image.bytes.insert(image.bytes.end(), {uint8_t(i), 40, 50, 255});
  const control::Frames small = Shrink(image, 1, 1);
  EXPECT_EQ(small.bytes, std::vector<uint8_t>({2, 40, 50}));  // 1.5
  ContactSheet sheet(1);
  sheet.Put(0, image);
  EXPECT_EQ(RedAt(sheet.image(), 61, 61), 0);
  EXPECT_EQ(RedAt(sheet.image(), 62, 62), 3);
}

TEST(ContactSheetTest, PutsImagesInTheirCellsAndNowhereElse) {
  ContactSheet sheet(20);
  sheet.Put(17, Plain(1000, 10, 200));  // second row, second column
  sheet.Put(1, Plain(10, 1000, 100));
  sheet.Put(0, Plain(8, 8, 50));
  sheet.Put(19, Plain(3000, 1, 70));
  sheet.PutFailure(2);
  int different = 0;
  for (int y = 0; y < sheet.image().height; ++y) {
    for (int x = 0; x < sheet.image().width; ++x) {
      const int cell = y / 128 * 16 + x / 128, red = RedAt(sheet.image(), x, y);
      if (red == 24) continue;
      ++different;
      EXPECT_EQ(red, cell == 17   ? 200
                     : cell == 1  ? 100
                     : cell == 0  ? 50
                     : cell == 19 ? 70
                     : cell == 2  ? 96
                                  : -1)
          << cell;
    }
  }
  EXPECT_EQ(different, 124 * 1 + 1 * 124 + 64 + 124 + 124 * 124);
}

TEST(ContactSheetTest, ASquareSheetKeepsPicturesAsTheyAreUntilItIsTooLarge) {
  for (const auto& [cells, side, width, height] : {std::tuple(1, 64, 68, 68),
                                                   {2, 64, 136, 68},
                                                   {5, 64, 204, 136},
                                                   {9, 1024, 3084, 3084},
                                                   {16, 2048, 4096, 4096},
                                                   {10000, 512, 4000, 4000}}) {
    const ContactSheet sheet = ContactSheet::Square(cells, side);
    EXPECT_EQ(sheet.image().width, width) << cells;
    EXPECT_EQ(sheet.image().height, height) << cells;
  }
  ContactSheet sheet = ContactSheet::Square(3, 10);
  control::Frames picture = Plain(10, 10, 200);
  picture.bytes[0] = 7;
  sheet.Put(2, picture);
  EXPECT_EQ(RedAt(sheet.image(), 0, 14), 7);
  EXPECT_EQ(RedAt(sheet.image(), 9, 23), 200);
  EXPECT_EQ(RedAt(sheet.image(), 10, 23), 24);
}

}  // namespace
}  // namespace tessera::client
