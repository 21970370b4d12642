#include "base/json/plain_json.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

namespace tessera::base {
namespace {

using boost::json::object;
using boost::json::value;

TEST(PlainJsonTest, NumbersAreWrittenAsPeopleWriteThem) {
  EXPECT_EQ(PlainJson(0.0), "0.0");
  EXPECT_EQ(PlainJson(-0.0), "-0.0");
  EXPECT_EQ(PlainJson(4.5), "4.5");
  EXPECT_EQ(PlainJson(28.0), "28.0");
  EXPECT_EQ(PlainJson(0.001), "0.001");
  EXPECT_EQ(PlainJson(1e300), "1e+300");
  EXPECT_EQ(PlainJson(7), "7");
  EXPECT_EQ(PlainJson(std::numeric_limits<uint64_t>::max()), "18446744073709551615");
  EXPECT_EQ(PlainJson(std::nan("")), "null");
  EXPECT_EQ(PlainJson(std::numeric_limits<double>::infinity()), "null");
}

TEST(PlainJsonTest, EveryDoubleReadsBackAsItself) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 100000; ++i) {
    double number = 0;
    const uint64_t bits = random();
    std::memcpy(&number, &bits, sizeof(number));
    if (!std::isfinite(number)) continue;
    EXPECT_EQ(std::strtod(PlainJson(number).c_str(), nullptr), number);
  }
}

TEST(PlainJsonTest, EverythingElseIsWhatBoostWrites) {
  for (const value& whole : {value(object{{"a\"b\n\x01", "\xC3\xA9\\"}, {"list", {1, -2, true, nullptr, "x"}}}),
                             value(object{{"empty", object()}, {"none", boost::json::array()}}), value("text"),
                             value(nullptr), value(boost::json::array{{{"deep", {object{{"er", 1}}}}}})}) {
    EXPECT_EQ(PlainJson(whole), boost::json::serialize(whole));
  }
}

}  // namespace
}  // namespace tessera::base
