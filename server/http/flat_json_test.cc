#include "server/http/flat_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "absl/strings/str_format.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::string& text) { return std::string(ReadFlatJson(text).status().message()); }

TEST(FlatJsonTest, EveryDigitOfANumberCounts) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> numbers(-1000, 1000);
  for (int i = 0; i < 10000; ++i) {
    const double number = numbers(random);
    const auto members = ReadFlatJson(absl::StrFormat(R"({"a":%.17g})", number));
    ASSERT_TRUE(members.ok()) << members.status();
    EXPECT_EQ(std::get<double>(std::get<JsonScalar>((*members)[0].value)), number);
  }
}

TEST(FlatJsonTest, WholeNumbersKeepTheirTypeToTheEndsOfTheirRange) {
  const auto scalar = [](const std::string& text) {
    return std::get<JsonScalar>((*ReadFlatJson("{\"a\":" + text + "}"))[0].value);
  };
  EXPECT_EQ(std::get<int64_t>(scalar("-9223372036854775808")), INT64_MIN);
  EXPECT_EQ(std::get<int64_t>(scalar("9223372036854775807")), INT64_MAX);
  EXPECT_EQ(std::get<uint64_t>(scalar("18446744073709551615")), UINT64_MAX);
  EXPECT_TRUE(std::holds_alternative<double>(scalar("18446744073709551616")));
  EXPECT_TRUE(std::holds_alternative<double>(scalar("1.0")));
}

TEST(FlatJsonTest, ZerosAndTheEndsOfTheExponentsRangeAreRead) {
  const auto number = [](const std::string& text) {
    const auto members = ReadFlatJson("{\"a\":" + text + "}");
    return members.ok() ? std::get<double>(std::get<JsonScalar>((*members)[0].value)) : -1;
  };
  for (const char* zero : {"0e40", "0E0", "0.0", "-0.0", "-0e-40", "0.000e99", "1e-400", "1e-99999999999"}) {
    EXPECT_EQ(number(zero), 0) << zero;
  }
  EXPECT_EQ(number("5e-324"), 5e-324);
  EXPECT_EQ(number("1.7976931348623157e308"), 1.7976931348623157e308);
  for (const char* large : {"1.7976931348623159e308", "-1.7976931348623159e308", "1e309"}) {
    EXPECT_THAT(ErrorOf(absl::StrFormat(R"({"a":%s})", large)), HasSubstr("not valid JSON at byte 5")) << large;
  }
}

TEST(FlatJsonTest, AListOfObjectsKeepsTheirMembersInOrder) {
  const auto members = ReadFlatJson(R"({"a":[{"x":1,"y":"b"},{}],"c":2,"d":[]})");
  ASSERT_TRUE(members.ok()) << members.status();
  ASSERT_EQ(members->size(), 3u);
  const auto& groups = std::get<std::vector<JsonGroup>>((*members)[0].value);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0], (JsonGroup{{"x", int64_t{1}}, {"y", std::string("b")}}));
  EXPECT_TRUE(groups[1].empty());
  EXPECT_EQ(std::get<int64_t>(std::get<JsonScalar>((*members)[1].value)), 2);
  EXPECT_TRUE(std::get<std::vector<JsonScalar>>((*members)[2].value).empty());
}

TEST(FlatJsonTest, MoreMembersOrValuesThanAnyRequestHasAreRefused) {
  std::string members = "{\"a\":1", list = "{\"a\":[1";
  for (int i = 0; i < 300; ++i) members += absl::StrFormat(",\"a%d\":1", i);
  for (int i = 0; i < 5000; ++i) list += ",1";
  EXPECT_THAT(ErrorOf(members + "}"), HasSubstr("more than 256 members"));
  EXPECT_THAT(ErrorOf(list + "]}"), HasSubstr("more than 4096 values"));
  std::string objects = "{\"a\":[{}", group = "{\"a\":[{\"b\":1";
  for (int i = 0; i < 5000; ++i) objects += ",{}";
  for (int i = 0; i < 300; ++i) group += absl::StrFormat(",\"a%d\":1", i);
  EXPECT_THAT(ErrorOf(objects + "]}"), HasSubstr("more than 4096 values"));
  EXPECT_THAT(ErrorOf(group + "}]}"), HasSubstr("more than 256 members"));
}

}  // namespace
}  // namespace tessera::server
