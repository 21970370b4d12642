#include <gtest/gtest.h>

#include "tests/support/planted_bug.h"
#include "tests/support/scripted_step_loop.h"

namespace tessera::server {
namespace {

TEST(PlantedStepLoopBugTest, APreviewAfterALaterStepIsFound) {
  ASSERT_TRUE(APreviewIsOfItsOwnStep());
  const PlantedBug planted("preview_after_a_later_step");
  EXPECT_FALSE(APreviewIsOfItsOwnStep());
}

}  // namespace
}  // namespace tessera::server
