#include "control/pictures/strength.h"

#include <gtest/gtest.h>

namespace tessera::control {
namespace {

TEST(StrengthTest, OneRunsEveryStepAndZeroNone) {
  for (const int steps : {1, 3, 50}) {
    EXPECT_EQ(FirstStepOfStrength(steps, 1), 0);
    EXPECT_EQ(FirstStepOfStrength(steps, 0), steps);
  }
}

TEST(StrengthTest, APartOfAStepIsRunAsAWholeStep) {
  EXPECT_EQ(FirstStepOfStrength(4, 0.05), 3);
  EXPECT_EQ(FirstStepOfStrength(4, 0.3), 2);
  EXPECT_EQ(FirstStepOfStrength(7, 0.3), 4);
  EXPECT_EQ(FirstStepOfStrength(6, 0.75), 1);
  EXPECT_EQ(FirstStepOfStrength(30, 0.5), 15);
}

// In Python, int(max(n - min(n * s, n), 0)).
TEST(StrengthTest, TheProductIsThatOfDoubles) {
  EXPECT_EQ(FirstStepOfStrength(100, 0.55), 44);
  EXPECT_EQ(FirstStepOfStrength(100, 0.57), 43);
  EXPECT_EQ(FirstStepOfStrength(100, 0.58), 42);
  EXPECT_EQ(FirstStepOfStrength(10, 0.7), 3);
  EXPECT_EQ(FirstStepOfStrength(20, 0.15), 17);
}

}  // namespace
}  // namespace tessera::control
