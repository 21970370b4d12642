#include <gtest/gtest.h>

#include "tests/support/ownership_fault.h"
#include "tests/support/planted_bug.h"

namespace tessera::parallel {
namespace {

TEST(PlantedDroppedShardTest, IsSeenAsTokensWithoutAnOwner) {
  const PlantedBug planted("uneven_last_shard_dropped");
  EXPECT_NE(OwnershipFault(*TokenLayout::Create({.image = 17, .text = 5, .ring = 2})), "");
  EXPECT_EQ(OwnershipFault(*TokenLayout::Create({.image = 16, .text = 6, .ring = 2})), "");
}

}  // namespace
}  // namespace tessera::parallel
