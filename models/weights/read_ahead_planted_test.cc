#include <gtest/gtest.h>

#include "tests/support/planted_bug.h"
#include "tests/support/read_ahead_parts.h"

namespace tessera::models {
namespace {

TEST(PlantedReadAheadTest, ABufferThatIsReadIntoWhileItIsInUseHoldsAnotherTurn) {
  const PlantedBug planted("buffer_read_into_in_use");
  // One buffer means one thread, which reads the turns in order. With two threads the first turn could be the last one
  // read into its buffer.
  ReadAheadParts parts(/*turns=*/2, /*buffers=*/1);
  ReadAhead reads(parts.folder(), parts.turns(), parts.buffers());
  ASSERT_TRUE(reads.Await(0).ok());
  ASSERT_TRUE(reads.Await(1).ok());
  EXPECT_NE(parts.InBufferOf(0), parts.Expected(0));
}

}  // namespace
}  // namespace tessera::models
