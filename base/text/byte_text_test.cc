#include "base/text/byte_text.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::base {
namespace {

TEST(ByteTextTest, ReadsANumberWithAUnit) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  const std::pair<const char*, uint64_t> cases[] = {{"12GiB", 12 * kGiB},
                                                    {"12 gib", 12 * kGiB},
                                                    {"7.5GiB", 15 * kGiB / 2},
                                                    {"1KiB", 1024},
                                                    {"1kb", 1000},
                                                    {"0.5MB", 500000},
                                                    {"24GB", 24000000000},
                                                    {"1024GiB", 1024 * kGiB},
                                                    {"1073741824GiB", uint64_t{1} << 60}};
  for (const auto& [text, bytes] : cases) EXPECT_EQ(ParseByteText(text).value_or(0), bytes) << text;
}

TEST(ByteTextTest, RefusesWhatIsNoSize) {
  for (const char* text : {"", "12", "GiB", " GiB", "-1GiB", "+1GiB", "1e2GiB", "0x10GiB", "infGiB", "nanGiB",
                           "1..2GiB", "12 apples", "12GiBs", "1073741825GiB", "1TiB", "12Gi"}) {
    EXPECT_EQ(ParseByteText(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ByteTextTest, ASizeBelowTheLeastIsRefusedWithIt) {
  EXPECT_TRUE(CheckByteText("limit", "1MiB", 1 << 20).ok());
  EXPECT_EQ(CheckByteText("limit", "1MB", 1 << 20).message(), "limit is 976.6 KiB; it must be at least 1.0 MiB");
  EXPECT_EQ(CheckByteText("limit", "x", 1).message(),
            "limit is not a size of memory; write a number and a unit, such as 12GiB");
}

// What a size is shown as is read as that size again, within the digits that are shown.
TEST(ByteTextTest, ReadsWhatItShows) {
  for (const uint64_t bytes : {uint64_t{1536}, uint64_t{5} << 20, uint64_t{25769803776}}) {
    EXPECT_EQ(ParseByteText(ByteText(bytes)).value_or(0), bytes);
  }
}

}  // namespace
}  // namespace tessera::base
