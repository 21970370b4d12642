#include "base/files/byte_source.h"

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"

namespace tessera::base {
namespace {

std::string Letters(size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += static_cast<char>('a' + i % 26);
  return text;
}

// A source that cannot be read.
class Gone final : public ByteSource {
 public:
  uint64_t size() const override { return 4; }
  absl::StatusOr<std::string> Read(uint64_t, size_t) const override { return absl::DataLossError("it is gone"); }
};

void ExpectEveryPieceOf(const ByteSource& source, const std::string& whole) {
  EXPECT_EQ(source.size(), whole.size());
  EXPECT_EQ(*ReadAll(source), whole);
  for (size_t offset = 0; offset <= whole.size(); ++offset) {
    for (size_t count = 0; count <= whole.size() - offset + 2; ++count) {
      ASSERT_EQ(*source.Read(offset, count), whole.substr(offset, count)) << count << " bytes from " << offset;
    }
  }
  EXPECT_EQ(*source.Read(whole.size() + 7, 3), "");
}

TEST(ByteSourceTest, APieceOfATextIsThatPart) { ExpectEveryPieceOf(*BytesOf(Letters(11)), Letters(11)); }

TEST(ByteSourceTest, APieceOfWhatIsJoinedMayReachOverSeveralParts) {
  const SharedBytes joined = Joined({BytesOf("a"), BytesOf(""), BytesOf("bcd"), Joined({BytesOf("ef")}), BytesOf("")});
  ExpectEveryPieceOf(*joined, "abcdef");
  ExpectEveryPieceOf(*Joined({}), "");
}

TEST(ByteSourceTest, APieceOfBase64IsThatPartOfTheWholeText) {
  for (size_t size = 0; size < 12; ++size) {
    ExpectEveryPieceOf(*InBase64(BytesOf(Letters(size))), absl::Base64Escape(Letters(size)));
  }
}

TEST(ByteSourceTest, AnErrorOfAPartIsTheErrorOfTheWhole) {
  const SharedBytes gone = std::make_shared<Gone>();
  EXPECT_EQ(InBase64(gone)->Read(0, 4).status().message(), "it is gone");
  const SharedBytes joined = Joined({BytesOf("abc"), gone});
  EXPECT_EQ(*joined->Read(0, 3), "abc");
  EXPECT_FALSE(joined->Read(0, 4).ok());
  EXPECT_FALSE(ReadAll(*joined).ok());
}

}  // namespace
}  // namespace tessera::base
