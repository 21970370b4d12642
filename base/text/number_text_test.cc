#include "base/text/number_text.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::base {
namespace {

TEST(NumberTextTest, ANumberIsShownWithTheDigitsThatItWasSentWith) {
  const std::pair<double, const char*> cases[] = {{0, "0"},
                                                  {-1.5, "-1.5"},
                                                  {0.1, "0.1"},
                                                  {1000.0001, "1000.0001"},
                                                  {1000000, "1000000"},
                                                  {18446744073709551616.0, "18446744073709551616"},
                                                  {-9007199254740994.0, "-9007199254740994"},
                                                  {1e-7, "1e-07"},
                                                  {1e300, "1e+300"},
                                                  {NAN, "nan"},
                                                  {-INFINITY, "-inf"}};
  for (const auto& [number, text] : cases) EXPECT_EQ(NumberText(number), text);
}

}  // namespace
}  // namespace tessera::base
