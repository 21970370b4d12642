#include <gtest/gtest.h>

#include "tests/support/fencing_scenario.h"
#include "tests/support/planted_bug.h"

namespace tessera::server {
namespace {

TEST(NodeRegistryPlantedTest, HearingAFencedProcessIsNoticed) {
  const PlantedBug bug("fenced_nodes_are_heard");
  EXPECT_FALSE(ASuccessorsRankOutlivesItsPredecessorsWord());
}

}  // namespace
}  // namespace tessera::server
