#include "server/image/name_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "server/image/character_sets.h"
#include "tests/support/test_folder.h"

namespace tessera::server {
namespace {

using std::string_literals::operator""s;
using testing::HasSubstr;

NameValues Typical() {
  return {.index = 2,
          .seed = 18446744073709551615u,
          .prompt = "A red Apple!",
          .width = 512,
          .height = 256,
          .model = "PixArt/Sigma-XL",
          .steps = 20};
}

class NextFreeNameTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_ / name; }
  void Create(const std::string& name) const { std::ofstream(Path(name)) << "x"; }

  TestFolder folder_;
};

TEST(ExpandPatternTest, DefaultPatternJoinsPromptAndSeed) {
  EXPECT_EQ(ExpandPattern(kDefaultNamePattern, Typical()).value(), "a-red-apple-18446744073709551615.png");
}

TEST(ExpandPatternTest, EveryFieldIsReplaced) {
  EXPECT_EQ(ExpandPattern("out/{index}_{width}x{height}_{model}_{steps}.webp", Typical()).value(),
            "out/2_512x256_pixart-sigma-xl_20.webp");
}

TEST(ExpandPatternTest, DoubledBracesStandForThemselves) {
  EXPECT_EQ(ExpandPattern("{{seed}}-{{{index}}}.png", Typical()).value(), "{seed}-{2}.png");
}

TEST(ExpandPatternTest, UnknownFieldListsTheValidOnes) {
  for (const char* pattern : {"{date}.png", "{}.png", "{Seed}.png", "{ seed}.png"}) {
    const absl::Status status = ExpandPattern(pattern, Typical()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_THAT(status.message(), HasSubstr("{index}, {seed}, {prompt}, {width}, {height}, {model} and {steps}"));
  }
}

TEST(ExpandPatternTest, LoneBracesAreErrors) {
  for (const char* pattern : {"{seed.png", "seed}.png", "x.png{", "}"}) {
    EXPECT_THAT(ExpandPattern(pattern, Typical()).status().message(), HasSubstr("lone")) << pattern;
  }
}

TEST(ExpandPatternTest, PatternsThatNameNoFileAreErrors) {
  for (const std::string& pattern : {""s, "folder/"s, "."s, "a/.."s, "a\0.png"s}) {
    EXPECT_FALSE(ExpandPattern(pattern, Typical()).ok()) << pattern;
  }
}

TEST(ExpandPatternTest, NamesThatNoFileSystemTakesAreErrors) {
  EXPECT_THAT(ExpandPattern(std::string(252, 'x') + ".png", Typical()).status().message(), HasSubstr("255"));
}

TEST(SlugTest, LettersAndDigitsOfEveryScriptAreKept) {
  EXPECT_EQ(Slug("\u00C9t\u00E9 in \u4E2D\u6587, \u0420\u0423\u0421 42"),
            "\u00E9t\u00E9-in-\u4E2D\u6587-\u0440\u0443\u0441-42");
  EXPECT_EQ(Slug("\u0939\u093F\u0928\u094D\u0926\u0940"), "\u0939\u093F\u0928\u094D\u0926\u0940");
}

TEST(SlugTest, DecomposedLettersEqualComposedOnes) { EXPECT_EQ(Slug("Cafe\u0301"), "caf\u00E9"); }

TEST(SlugTest, TextWithoutLettersBecomesImage) {
  for (const std::string& text : {""s, "..."s, "///"s, "\U0001F34E"s, "\xFF\xFE"s, "\0"s, "\u0301"s}) {
    EXPECT_EQ(Slug(text), "image");
  }
}

TEST(SlugTest, PathsAndHiddenNamesLoseTheirMeaning) {
  EXPECT_EQ(Slug("../../etc/passwd"), "etc-passwd");
  EXPECT_EQ(Slug(".hidden"), "hidden");
  EXPECT_EQ(Slug("a\\b:c\nd"), "a-b-c-d");
}

TEST(SlugTest, LongTextIsCutBetweenCharactersAtSixtyBytes) {
  EXPECT_EQ(Slug(std::string(100'000, 'x')), std::string(60, 'x'));
  std::string chinese;
  for (int i = 0; i < 5000; ++i) chinese += "\u4E2D";
  EXPECT_EQ(Slug(chinese), chinese.substr(0, 60));
  EXPECT_EQ(Slug("x" + chinese), "x" + chinese.substr(0, 57));
  EXPECT_EQ(Slug(std::string(60, 'x') + " y"), std::string(60, 'x'));
  EXPECT_EQ(Slug(std::string(59, 'x') + " y"), std::string(59, 'x'));
}

TEST(SlugTest, AnyBytesGiveASafeName) {
  std::mt19937 random(11);
  for (int i = 0; i < 5000; ++i) {
    std::string text(random() % 200, '\0');
    for (char& c : text) c = static_cast<char>(random());
    const std::string slug = Slug(text);
    ASSERT_FALSE(slug.empty());
    ASSERT_LE(slug.size(), 60u);
    ASSERT_TRUE(IsUtf8(slug));
    ASSERT_EQ(slug.find_first_of("/\\.:\n\0"s), std::string::npos) << slug;
    ASSERT_NE(slug.front(), '-');
    ASSERT_NE(slug.back(), '-');
    ASSERT_EQ(Slug(slug), slug);
  }
}

TEST_F(NextFreeNameTest, FreeNameIsKept) { EXPECT_EQ(NextFreeName(Path("a.png")), Path("a.png")); }

TEST_F(NextFreeNameTest, TakenNamesAreNumberedBeforeTheExtension) {
  Create("a.png");
  EXPECT_EQ(NextFreeName(Path("a.png")), Path("a-2.png"));
  Create("a-2.png");
  EXPECT_EQ(NextFreeName(Path("a.png")), Path("a-3.png"));
}

TEST_F(NextFreeNameTest, OnlyTheLastExtensionOfTheNameCounts) {
  std::filesystem::create_directory(Path("v1.5"));
  Create("v1.5/a");
  Create("a.b.png");
  EXPECT_EQ(NextFreeName(Path("v1.5/a")), Path("v1.5/a-2"));
  EXPECT_EQ(NextFreeName(Path("a.b.png")), Path("a.b-2.png"));
}

TEST_F(NextFreeNameTest, DanglingLinkCountsAsTaken) {
  std::filesystem::create_symlink("nowhere", Path("a.png"));
  EXPECT_EQ(NextFreeName(Path("a.png")), Path("a-2.png"));
}

}  // namespace
}  // namespace tessera::server
