#include "base/json/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace tessera::base {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Json Parse(const std::string& text) {
  const absl::StatusOr<Json> json = ParseJson(text, "test.json");
  EXPECT_TRUE(json.ok()) << text << ": " << json.status();
  return json.ok() ? *json : Json();
}

std::string ErrorOf(const std::string& text, size_t max_bytes = kMaxJsonBytes) {
  const absl::StatusOr<Json> json = ParseJson(text, "test.json", max_bytes);
  EXPECT_EQ(json.status().code(), absl::StatusCode::kInvalidArgument) << text;
  EXPECT_THAT(std::string(json.status().message()), StartsWith("test.json: "));
  return std::string(json.status().message());
}

TEST(JsonTest, EveryTypeOfValueIsRead) {
  const Json json = Parse(R"({"n": null, "b": true, "i": -3, "d": 0.5, "s": "text", "a": [1, "x"], "o": {"k": 1}})");
  EXPECT_TRUE(json.Find("n")->is_null());
  EXPECT_EQ(json.Find("b")->AsBool(), true);
  EXPECT_EQ(json.Find("i")->AsInt(), -3);
  EXPECT_EQ(json.Find("d")->AsNumber(), 0.5);
  EXPECT_EQ(*json.Find("s")->AsString(), "text");
  ASSERT_EQ(json.Find("a")->items().size(), 2u);
  EXPECT_EQ(*json.Find("a")->items()[1].AsString(), "x");
  EXPECT_EQ(json.Find("o")->Find("k")->AsInt(), 1);
  EXPECT_EQ(json.Find("absent"), nullptr);
}

TEST(JsonTest, AValueOfAnotherTypeIsNothing) {
  const Json json = Parse(R"(["1", 1, 1.0, true, null, [], {}])");
  EXPECT_EQ(json.items()[0].AsInt(), std::nullopt);
  EXPECT_EQ(json.items()[1].AsString(), nullptr);
  EXPECT_EQ(json.items()[2].AsInt(), std::nullopt);
  EXPECT_EQ(json.items()[3].AsNumber(), std::nullopt);
  EXPECT_EQ(json.items()[4].AsBool(), std::nullopt);
  EXPECT_EQ(json.items()[5].Find("x"), nullptr);
  EXPECT_TRUE(json.items()[5].is_array());
  EXPECT_TRUE(json.items()[6].is_object());
  EXPECT_TRUE(json.items()[6].items().empty());
}

TEST(JsonTest, MembersKeepTheOrderOfTheText) {
  const Json json = Parse(R"({"z": 1, "a": 2, "m": 3})");
  ASSERT_EQ(json.members().size(), 3u);
  EXPECT_EQ(json.members()[0].key, "z");
  EXPECT_EQ(json.members()[1].key, "a");
  EXPECT_EQ(json.members()[2].key, "m");
}

TEST(JsonTest, PythonsLiteralsForNonFiniteNumbersAreAccepted) {
  const Json json = Parse("[NaN, Infinity, -Infinity]");
  EXPECT_TRUE(std::isnan(*json.items()[0].AsNumber()));
  EXPECT_EQ(json.items()[1].AsNumber(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(json.items()[2].AsNumber(), -std::numeric_limits<double>::infinity());
}

TEST(JsonTest, OtherSpellingsOfNonFiniteNumbersAreRefused) {
  EXPECT_THAT(ErrorOf("[Inf]"), HasSubstr("did you mean NaN, Infinity"));
  EXPECT_THAT(ErrorOf("[-NaN]"), HasSubstr("invalid number \"-NaN\""));
  ErrorOf("[nan]");
  ErrorOf("[+1]");
}

TEST(JsonTest, NumbersAreExact) {
  const Json json = Parse("[9223372036854775807, -9223372036854775808, 0.1, 5e-324, 1.7976931348623157e308, 1e-06]");
  EXPECT_EQ(json.items()[0].AsInt(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(json.items()[1].AsInt(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(json.items()[2].AsNumber(), 0.1);
  EXPECT_EQ(json.items()[3].AsNumber(), 5e-324);
  EXPECT_EQ(json.items()[4].AsNumber(), std::numeric_limits<double>::max());
  EXPECT_EQ(json.items()[5].AsNumber(), 1e-6);
}

TEST(JsonTest, AWholeNumberBeyond64BitsIsNoInt) {
  const Json json = Parse("[9223372036854775808, 18446744073709551616, -9223372036854775809]");
  EXPECT_EQ(json.items()[0].AsInt(), std::nullopt);
  EXPECT_EQ(json.items()[0].AsNumber(), 9223372036854775808.0);
  EXPECT_EQ(json.items()[1].AsNumber(), 18446744073709551616.0);
  EXPECT_EQ(json.items()[2].AsInt(), std::nullopt);
}

TEST(JsonTest, ANumberTooSmallForADoubleIsZeroWhateverItsExponent) {
  const Json json = Parse("[1e-400, 0e41, 0.0e-99999999999999999999, -1e-2147483648]");
  for (const Json& item : json.items()) EXPECT_EQ(item.AsNumber(), 0.0);
}

TEST(JsonTest, ANumberBeyondDoubleIsRefused) {
  EXPECT_THAT(ErrorOf("1e999"), HasSubstr("too big"));
  EXPECT_THAT(ErrorOf("-1" + std::string(400, '0')), HasSubstr("too big"));
}

TEST(JsonTest, ADuplicateKeyIsNamedWithItsLine) {
  EXPECT_THAT(ErrorOf("{\"a\": 1,\n \"b\": 2,\n \"a\": 3}"),
              AllOf(HasSubstr("line 3, column 5"), HasSubstr("duplicate key \"a\"")));
}

TEST(JsonTest, ADuplicateKeyIsFoundInNestedObjectsAndWithEscapes) {
  EXPECT_THAT(ErrorOf(R"([{"x": {"abc": 1, "\u0061bc": 2}}])"), HasSubstr("duplicate key \"abc\""));
}

TEST(JsonTest, NestingOf64LevelsIsValidAndOf65IsNot) {
  Parse(std::string(64, '[') + std::string(64, ']'));
  EXPECT_THAT(ErrorOf(std::string(65, '[') + std::string(65, ']')), HasSubstr("deeper than 64"));
}

TEST(JsonTest, MillionsOfOpenBracketsAreRefusedWithoutRecursion) {
  EXPECT_THAT(ErrorOf(std::string(8'000'000, '[')), HasSubstr("deeper than 64"));
}

TEST(JsonTest, MoreThanFourMillionValuesAreRefused) {
  std::string text = "[";
  for (int i = 0; i < 4'000'000; ++i) text += "0,";
  EXPECT_THAT(ErrorOf(text + "0]"), HasSubstr("more than 4000000 values"));
}

TEST(JsonTest, BytesAfterTheValueAreRefused) {
  EXPECT_THAT(ErrorOf("{} x"), HasSubstr("line 1, column 4"));
  EXPECT_THAT(ErrorOf("{}{}"), HasSubstr("column 3"));
  EXPECT_THAT(ErrorOf(std::string("{}\0", 3)), HasSubstr("after the end"));
}

TEST(JsonTest, InvalidUtf8IsRefused) {
  ErrorOf("[\"\xC3\x28\"]");
  ErrorOf("[\"\xC0\x80\"]");
  ErrorOf("[\"\xED\xA0\x80\"]");
  ErrorOf("[\"\xF5\x80\x80\x80\"]");
  ErrorOf("{\"\xFF\": 1}");
}

TEST(JsonTest, HalfASurrogatePairIsRefusedAndAWholeOneIsACharacter) {
  ErrorOf(R"(["\ud800"])");
  EXPECT_THAT(ErrorOf(R"(["\udc00"])"), HasSubstr("surrogate"));
  EXPECT_THAT(ErrorOf(R"({"\udc00": 1})"), HasSubstr("surrogate"));
  EXPECT_EQ(*Parse(R"(["\ud83c\udf4e"])").items()[0].AsString(), "\xF0\x9F\x8D\x8E");
  EXPECT_EQ(*Parse("[\"\xED\x95\x9C\"]").items()[0].AsString(), "\xED\x95\x9C");
}

TEST(JsonTest, ATextLongerThanTheLimitIsRefused) {
  EXPECT_TRUE(ParseJson("[1]", "test.json", 3).ok());
  EXPECT_THAT(ErrorOf("[1,2]", 4), AllOf(HasSubstr("5 bytes"), HasSubstr("at most 4")));
}

TEST(JsonTest, ASyntaxErrorNamesLineAndColumn) {
  EXPECT_THAT(ErrorOf("{\n  \"a\": 1\n  \"b\": 2\n}"), HasSubstr("line 3, column 3"));
}

TEST(JsonTest, EmptyAndUnfinishedTextsAreRefused) {
  ErrorOf("");
  ErrorOf("   ");
  ErrorOf("{\"a\": ");
  ErrorOf("[\"abc");
  ErrorOf("[1,]");
  ErrorOf("{\"a\"}");
  ErrorOf("tru");
}

TEST(JsonTest, AValueOutlivesTheHandleItCameFrom) {
  Json inner;
  { inner = *Parse(R"({"a": {"b": ["kept"]}})").Find("a"); }
  EXPECT_EQ(*inner.Find("b")->items()[0].AsString(), "kept");
}

TEST(JsonTest, AValueDescribesItselfInAFewWords) {
  const Json json = Parse(R"([null, true, 12, 0.5, NaN, -Infinity, "a\"b", [1], {"a": 1, "b": 2}, 2.0, 1e30])");
  EXPECT_EQ(json.items()[0].Describe(), "null");
  EXPECT_EQ(json.items()[1].Describe(), "true");
  EXPECT_EQ(json.items()[2].Describe(), "12");
  EXPECT_EQ(json.items()[3].Describe(), "0.5");
  EXPECT_EQ(json.items()[4].Describe(), "NaN");
  EXPECT_EQ(json.items()[5].Describe(), "-Infinity");
  EXPECT_EQ(json.items()[6].Describe(), R"("a\"b")");
  EXPECT_EQ(json.items()[7].Describe(), "a list of 1 value");
  EXPECT_EQ(json.items()[8].Describe(), "an object of 2 fields");
  EXPECT_EQ(json.items()[9].Describe(), "2.0");
  EXPECT_EQ(json.items()[10].Describe(), "1e+30");
}

TEST(QuoteTest, ControlCharactersAndInvalidBytesAreEscaped) {
  EXPECT_EQ(Quote(std::string("a\0\n\x7F", 4)), R"("a\x00\x0a\x7f")");
  EXPECT_EQ(Quote("\xC3\xA9\xFF"), "\"\xC3\xA9\\xff\"");
}

TEST(QuoteTest, ALongTextIsCutBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "\xC3\xA9";
  const std::string quoted = Quote(text);
  EXPECT_LT(quoted.size(), 120u);
  EXPECT_THAT(quoted, testing::EndsWith("\xC3\xA9…\""));
}

}  // namespace
}  // namespace tessera::base
