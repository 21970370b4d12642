#include "base/toml/toml_document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::base {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(TomlDocumentTest, EveryKindOfValueHasItsJson) {
  const absl::StatusOr<std::string> json = TomlToJson(R"(
text = "a \"word\""
integer = 1_000
number = 1e-4
flag = true
day = 1979-05-27
hour = 07:32:00
moment = 1979-05-27T07:32:00Z
unknown = nan
list = [1, "b", [true]]
[table.inner]
key = 'c:\path'
[[datasets]]
size = 1
[[datasets]]
size = 2
)");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(*json,
            R"({"datasets":[{"size":1},{"size":2}],"day":"1979-05-27","flag":true,"hour":"07:32:00","integer":1000,)"
            R"("list":[1,"b",[true]],"moment":"1979-05-27T07:32:00Z","number":1e-04,"table":{"inner":{"key":)"
            R"("c:\\path"}},"text":"a \"word\"","unknown":null})");
  EXPECT_EQ(*TomlToJson(""), "{}");
}

TEST(TomlDocumentTest, AnErrorHasItsLine) {
  for (const char* text : {"a = 1\nb = ", "a = 1\na = 2", "[a]\n[a]", "a = 1\n\xff", "a = 1\n\x01"}) {
    EXPECT_THAT(std::string(TomlToJson(text).status().message()), AllOf(HasSubstr("not TOML: "), HasSubstr("(line 2)")))
        << text;
  }
  EXPECT_FALSE(TomlToJson("a = " + std::string(100000, '[')).ok()) << "nesting is bounded";
}

}  // namespace
}  // namespace tessera::base
