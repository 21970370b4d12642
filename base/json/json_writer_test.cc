#include "base/json/json_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/json/json.h"

namespace tessera::base {
namespace {

TEST(JsonWriterTest, ValuesKeysAndBracketsStandWhereTheyBelong) {
  JsonWriter json;
  json.BeginObject().Key("a").Ints({1, -2}).Key("b").BeginArray().EndArray().Key("c").BeginObject().EndObject();
  json.Key("d").BeginArray().BeginObject().Key("x").Bool(true).EndObject().BeginArray().Number(1).EndArray();
  json.EndArray().Key("e").String("").Key("f").Json("[7]").EndObject();
  EXPECT_EQ(json.text(), R"({"a":[1,-2],"b":[],"c":{},"d":[{"x":true},[1.0]],"e":"","f":[7]})");
}

TEST(JsonWriterTest, TextsReadBackAsTheyWere) {
  for (const std::string& text :
       {std::string("a\"b\\c\n\t\x01\x1f"), std::string("\0x", 2), std::string("…{[:,"), std::string()}) {
    const auto read = ParseJson(JsonText(text), "text");
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_NE(read->AsString(), nullptr);
    EXPECT_EQ(*read->AsString(), text);
  }
}

TEST(JsonWriterTest, ABracketAtTheEndOfATextIsNoBracketOfTheWriter) {
  JsonWriter json;
  json.BeginArray().String("{").String(":").String("[").EndArray();
  EXPECT_EQ(json.text(), R"(["{",":","["])");
}

TEST(JsonWriterTest, NumbersReadBackBitForBit) {
  for (const double number : {0.0, 1.0, -3.0, 0.1, 1e-300, 4.9406564584124654e-324, 1.7976931348623157e308, 1.0 / 3}) {
    const auto read = ParseJson(JsonNumber(number), "number");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->type(), Json::Type::kNumber);
    EXPECT_EQ(*read->AsNumber(), number);
  }
  EXPECT_EQ(JsonNumber(std::nan("")), "null");
  EXPECT_EQ(JsonNumber(std::numeric_limits<double>::infinity()), "null");
}

}  // namespace
}  // namespace tessera::base
