#include "server/image/exif.h"

#include <gtest/gtest.h>

#include <string>

#include "server/image/character_sets.h"

namespace tessera::server {
namespace {

using std::string_literals::operator""s;

// Returns a little-endian block like those of cameras: IFD0 with the pointer to the EXIF directory, which has a
// UserComment.
std::string LittleEndianExif(const std::string& comment) {
  std::string block =
      "II*\0\x08\0\0\0"s
      "\x01\0\x69\x87\x04\0\x01\0\0\0\x1A\0\0\0\0\0\0\0"s
      "\x01\0\x86\x92\x07\0"s;
  block.push_back(static_cast<char>(comment.size()));
  block += "\0\0\0\x2C\0\0\0\0\0\0\0"s + comment;
  return block;
}

TEST(ExifTest, BlockIsLaidOutAsTheTiffSpecificationSays) {
  const std::string expected =
      "MM\0*\0\0\0\x08"s
      "\0\x01\x87\x69\0\x04\0\0\0\x01\0\0\0\x1A\0\0\0\0"s
      "\0\x02\x90\0\0\x07\0\0\0\x04"s
      "0232"
      "\x92\x86\0\x07\0\0\0\x0C\0\0\0\x38\0\0\0\0"s
      "UNICODE\0\0h\x4E\x2D"s;
  EXPECT_EQ(BuildExif("h\u4E2D"), expected);
}

TEST(ExifTest, CommentsRoundTripForEveryPlaneOfUnicode) {
  for (const char* comment : {"plain", "caf\u00E9", "\u4E2D\u6587", "\U0001F34E apple", "two\nlines"}) {
    const auto read = ReadExifUserComment(BuildExif(comment));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, comment);
  }
}

TEST(ExifTest, MarkerInFrontOfTheBlockIsSkipped) {
  EXPECT_EQ(ReadExifUserComment("Exif\0\0"s + BuildExif("text")).value(), "text");
}

TEST(ExifTest, LittleEndianBlockOfACameraIsRead) {
  EXPECT_EQ(ReadExifUserComment(LittleEndianExif("UNICODE\0a\0b\0"s)).value(), "ab");
  EXPECT_EQ(ReadExifUserComment(LittleEndianExif("ASCII\0\0\0hello \0\0"s)).value(), "hello");
}

TEST(ExifTest, ByteOrderMarkOverridesTheOrderOfTheBlock) {
  EXPECT_EQ(ReadExifUserComment(LittleEndianExif("UNICODE\0\xFE\xFF\0a"s)).value(), "a");
}

TEST(ExifTest, UnknownCharacterCodeGivesNoComment) {
  EXPECT_EQ(ReadExifUserComment(LittleEndianExif("JIS\0\0\0\0\0ab"s)).value(), "");
}

TEST(ExifTest, LoneSurrogateBecomesTheReplacementCharacter) {
  EXPECT_EQ(ReadExifUserComment(LittleEndianExif("UNICODE\0\0\xD8\x61\0"s)).value(), "\uFFFDa");
}

TEST(ExifTest, EveryShorterBlockIsAnErrorOrHasNoComment) {
  const std::string block = BuildExif("something");
  for (size_t length = 0; length < block.size(); ++length) {
    const auto read = ReadExifUserComment(block.substr(0, length));
    EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << length;
  }
}

TEST(ExifTest, OffsetsOutsideTheBlockAreErrors) {
  for (const size_t field : {4, 18, 44, 48}) {
    std::string block = BuildExif("something");
    block.replace(field, 4, "\xFF\xFF\xFF\xFF");
    EXPECT_EQ(ReadExifUserComment(block).status().code(), absl::StatusCode::kDataLoss) << field;
  }
}

TEST(CharacterSetsTest, OnlyTextWithinLatin1IsConverted) {
  EXPECT_EQ(Utf8ToLatin1("caf\u00E9\u00FF").value(), "caf\xE9\xFF");
  EXPECT_FALSE(Utf8ToLatin1("\u0100").has_value());
  EXPECT_EQ(Latin1ToUtf8("caf\xE9"), "caf\u00E9");
}

TEST(CharacterSetsTest, OverlongAndCutSequencesAreNotUtf8) {
  EXPECT_TRUE(IsUtf8("\U0010FFFF"));
  for (const char* bad : {"\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "a\xE4\xB8", "\x80"}) {
    EXPECT_FALSE(IsUtf8(bad));
  }
}

}  // namespace
}  // namespace tessera::server
