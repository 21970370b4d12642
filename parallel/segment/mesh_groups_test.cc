#include "parallel/segment/mesh_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::parallel {
namespace {

std::vector<std::vector<int>> GroupsOf(const MeshShape& shape, const std::string& name) {
  std::vector<std::vector<int>> ranks;
  for (const HostGroup& group : TrainingMeshGroups(*Mesh::Create(shape, static_cast<int>(NumRanks(shape))))) {
    if (group.name == name) ranks.push_back(group.ranks);
  }
  return ranks;
}

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Ranks = std::vector<int>;

TEST(MeshGroupsTest, TheWorldOfAModelIsOneDataCoordinate) {
  const MeshShape shape = {.data = 2, .ulysses = 2, .tensor = 2};
  EXPECT_THAT(GroupsOf(shape, MeshGroupName::kWorld), ElementsAre(Ranks{0, 1, 2, 3}, Ranks{4, 5, 6, 7}));
  EXPECT_THAT(GroupsOf(shape, MeshGroupName::kControl), ElementsAre(Ranks{0, 1, 2, 3}, Ranks{4, 5, 6, 7}));
  EXPECT_THAT(GroupsOf(shape, MeshGroupName::kAll), ElementsAre(Ranks{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(MeshGroupsTest, TheRanksOfADataGroupHoldTheSamePart) {
  EXPECT_THAT(GroupsOf({.data = 2, .ulysses = 2}, MeshGroupName::kData), ElementsAre(Ranks{0, 2}, Ranks{1, 3}));
}

TEST(MeshGroupsTest, OneReplicaHasNoDataGroup) {
  EXPECT_THAT(GroupsOf({.tensor = 4}, MeshGroupName::kData), IsEmpty());
  EXPECT_THAT(GroupsOf({.tensor = 4}, MeshGroupName::kAll), ElementsAre(Ranks{0, 1, 2, 3}));
}

TEST(MeshGroupsTest, ServingHasNoGroupsOfTraining) {
  for (const HostGroup& group : MeshGroups(*Mesh::Create({.data = 2, .tensor = 2}, 4))) {
    EXPECT_NE(group.name, MeshGroupName::kData);
    EXPECT_NE(group.name, MeshGroupName::kAll);
  }
}

}  // namespace
}  // namespace tessera::parallel
