#include "base/yaml/yaml_document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace tessera::base {
namespace {

using ::testing::HasSubstr;

constexpr YamlBounds kFew = {.depth = 3, .nodes = 12, .anchors = 2, .aliases = 4};

std::string ErrorOf(const std::string& text) {
  const absl::StatusOr<YAML::Node> document = ReadYamlDocument(text, kFew);
  return document.ok() ? "" : std::string(document.status().message());
}

TEST(YamlDocumentTest, ADocumentWithinTheBoundsIsRead) {
  const absl::StatusOr<YAML::Node> document = ReadYamlDocument("a: &list [1, 2]\nb: *list\n", kFew);
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_EQ((*document)["b"][1].as<int>(), 2);
}

TEST(YamlDocumentTest, ATextWithoutADocumentIsNull) {
  const absl::StatusOr<YAML::Node> document = ReadYamlDocument("# nothing\n", kFew);
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_TRUE(document->IsNull());
}

TEST(YamlDocumentTest, EachBoundHoldsExactlyAndTheErrorNamesItWithItsLine) {
  EXPECT_EQ(ErrorOf("a: {b: [c]}"), "");
  EXPECT_THAT(ErrorOf("x: 1\na: {b: [[c]]}"), HasSubstr("line 2: there are more than 3 levels of mappings and lists"));
  EXPECT_EQ(ErrorOf("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]"), "");
  EXPECT_THAT(ErrorOf("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,\n12]"), HasSubstr("line 2: there are more than 12 keys"));
  EXPECT_EQ(ErrorOf("[&a 1, &b 2]"), "");
  EXPECT_THAT(ErrorOf("[&a 1, &b 2, &c 3]"), HasSubstr("more than 2 anchors"));
  EXPECT_EQ(ErrorOf("[&a 1, *a, *a, *a, *a]"), "");
  EXPECT_THAT(ErrorOf("[&a 1, *a, *a, *a, *a, *a]"), HasSubstr("more than 4 aliases"));
}

TEST(YamlDocumentTest, ADocumentThatHoldsItselfIsReadAndFreed) {
  // A leak would be detected by AddressSanitizer.
  const absl::StatusOr<YAML::Node> document = ReadYamlDocument("a: &a {b: [*a, *a]}", kFew);
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_TRUE((*document)["a"]["b"][0]["b"][1].is((*document)["a"]));
}

TEST(YamlDocumentTest, DocumentsWithoutEndAreRefused) {
  for (const std::string begin : {"", "a: 1\n---\n", "--- a\n...\n"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat(begin, ",")), HasSubstr("more than one YAML document")) << begin;
  }
}

}  // namespace
}  // namespace tessera::base
