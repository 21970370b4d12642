#include "client/cli/option_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tessera::client {
namespace {

TEST(OptionTextTest, TakesTheNearestIntegerForOneThatDoesNotFit) {
  EXPECT_EQ(*ParseInteger("steps", "20"), 20);
  EXPECT_EQ(*ParseInteger("steps", "-20"), -20);
  EXPECT_EQ(*ParseInteger("steps", "9223372036854775808"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(*ParseInteger("steps", "-9223372036854775809"), std::numeric_limits<int64_t>::min());
}

TEST(OptionTextTest, RefusesWhatIsNoInteger) {
  for (const char* text : {"", "-", "1.5", "1e3", " 1", "0x10", "one"}) {
    EXPECT_FALSE(ParseInteger("steps", text).ok()) << text;
  }
}

TEST(OptionTextTest, ReadsIntegersWithCommasBetweenThem) {
  EXPECT_EQ(*ParseIntegers("skip layers", "9,7,-8"), (std::vector<int64_t>{9, 7, -8}));
  EXPECT_EQ(*ParseIntegers("skip layers", "7"), std::vector<int64_t>{7});
  for (const char* text : {"", ",", "7,", ",7", "7,,8", "7, 8", "7 8", "7.5"}) {
    EXPECT_FALSE(ParseIntegers("skip layers", text).ok()) << text;
  }
}

TEST(OptionTextTest, TakesEverySeedOf64BitsAndNoOther) {
  EXPECT_EQ(*ParseSeed("18446744073709551615"), 18446744073709551615u);
  EXPECT_FALSE(ParseSeed("18446744073709551616").ok());
  EXPECT_EQ(*ParseSeed("-1"), std::nullopt);
  for (const char* text : {"-2", "-01", "--1", "1.5", ""}) {
    EXPECT_THAT(std::string(ParseSeed(text).status().message()),
                testing::HasSubstr("it must be a whole number from 0 to 18446744073709551615, or -1 for any"))
        << text;
  }
}

TEST(OptionTextTest, LeavesNanAndInfinityToTheValidator) {
  EXPECT_TRUE(std::isnan(*ParseNumber("guidance", "nan")));
  EXPECT_TRUE(std::isinf(*ParseNumber("guidance", "1e999")));
  EXPECT_FALSE(ParseNumber("guidance", "4,5").ok());
}

TEST(OptionTextTest, ReadsASizeAsWidthBeforeHeightAndOneNumberAsASquare) {
  const absl::StatusOr<TypedSize> size = ParseSize("size", "768x512");
  ASSERT_TRUE(size.ok());
  EXPECT_EQ(size->width, 768);
  EXPECT_EQ(size->height, 512);
  EXPECT_EQ(ParseSize("size", "64")->height, 64);
  EXPECT_EQ(ParseSize("size", "8X16")->height, 16);
}

TEST(OptionTextTest, RefusesWhatIsNoSize) {
  for (const char* text : {"", "x", "64x", "x64", "64x64x64", "64*64", "big"})
    EXPECT_FALSE(ParseSize("size", text).ok()) << text;
}

}  // namespace
}  // namespace tessera::client
