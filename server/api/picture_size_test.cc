#include "server/api/picture_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tessera::server {
namespace {

TEST(PictureSizeTest, IsWidthAndHeight) {
  EXPECT_EQ(*ParsePictureSize("1024x768"), (PictureSize{.width = 1024, .height = 768}));
  EXPECT_EQ(*ParsePictureSize("1x65536"), (PictureSize{.width = 1, .height = 65536}));
}

TEST(PictureSizeTest, AnotherTextIsRefusedWithWhatIsValid) {
  for (const char* text :
       {"", "x", "1024", "1024x", "x1024", "1024X768", "0x8", "8x65537", "-8x8", "8x8x8", "8 x8", "99999999999x8"}) {
    const absl::Status status = ParsePictureSize(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(status.message(), "is '" + std::string(text) +
                                    "'; it must be WIDTHxHEIGHT in pixels, such as 1024x768, each from 1 to 65536");
  }
}

}  // namespace
}  // namespace tessera::server
