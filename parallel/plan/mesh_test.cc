#include "parallel/plan/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace tessera::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Mesh Of(const MeshShape& shape) { return *Mesh::Create(shape, static_cast<int>(NumRanks(shape))); }

// Returns every shape of up to eight ranks over all six axes.
std::vector<Mesh> AllMeshes() {
  std::vector<Mesh> meshes;
  for (int data = 1; data <= 8; ++data)
    for (int cfg = 1; data * cfg <= 8; ++cfg)
      for (int pipe = 1; data * cfg * pipe <= 8; ++pipe)
        for (int ring = 1; data * cfg * pipe * ring <= 8; ++ring)
          for (int ulysses = 1; data * cfg * pipe * ring * ulysses <= 8; ++ulysses)
            for (int tensor = 1; data * cfg * pipe * ring * ulysses * tensor <= 8; ++tensor)
              meshes.push_back(Of({data, cfg, pipe, ring, ulysses, tensor}));
  return meshes;
}

TEST(MeshTest, PutsTheTalkativeAxesNextToEachOther) {
  const Mesh mesh = Of({.cfg = 2, .ring = 2, .tensor = 2});
  EXPECT_THAT(mesh.Group(5, Axis::kTensor), ElementsAre(4, 5));
  EXPECT_THAT(mesh.Group(5, Axis::kRing), ElementsAre(5, 7));
  EXPECT_THAT(mesh.Group(5, Axis::kCfg), ElementsAre(1, 5));
  EXPECT_THAT(mesh.Group(5, Axis::kPipe), ElementsAre(5));
}

TEST(MeshTest, CoordinatesLeadBackToTheirRank) {
  for (const Mesh& mesh : AllMeshes()) {
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      ASSERT_EQ(mesh.RankOf(mesh.Coords(rank)), rank);
    }
  }
}

TEST(MeshTest, GroupsOfAnAxisPartitionTheRanks) {
  for (const Mesh& mesh : AllMeshes()) {
    for (const Axis axis : kAllAxes) {
      std::set<std::vector<int>> groups;
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        const std::vector<int> group = mesh.Group(rank, axis);
        ASSERT_TRUE(std::ranges::is_sorted(group));
        ASSERT_EQ(group.size(), static_cast<size_t>(mesh.size(axis)));
        ASSERT_EQ(group[static_cast<size_t>(mesh.Coord(rank, axis))], rank);
        groups.insert(group);
      }
      ASSERT_EQ(groups.size() * static_cast<size_t>(mesh.size(axis)), static_cast<size_t>(mesh.world_size()));
    }
  }
}

TEST(MeshTest, AGroupOverRingAndUlyssesIsContiguousWithUlyssesInside) {
  const Mesh mesh = Of({.cfg = 2, .ring = 2, .ulysses = 2});
  EXPECT_THAT(mesh.Group(6, {Axis::kRing, Axis::kUlysses}), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(mesh.Group(6, Axis::kUlysses), ElementsAre(6, 7));
}

TEST(MeshTest, RefusesASizeBelowOneByName) {
  EXPECT_THAT(Mesh::Create({.ring = 0}, 1).status().message(), HasSubstr("ring is 0; valid values are 1 or more"));
}

TEST(MeshTest, RefusesAProductThatIsNotTheNumberOfRanks) {
  EXPECT_THAT(Mesh::Create({.cfg = 2, .tensor = 2}, 8).status().message(),
              HasSubstr("a mesh of cfg=2 x tensor=2 has fewer ranks than the 8 available"));
  EXPECT_THAT(Mesh::Create({.tensor = 4}, 2).status().message(), HasSubstr("has more ranks than the 2 available"));
}

TEST(MeshTest, RefusesSizesWhoseProductOverflows) {
  const int huge = 1 << 30;
  EXPECT_FALSE(Mesh::Create({huge, huge, huge, huge, huge, huge}, 1).ok());
}

}  // namespace
}  // namespace tessera::parallel
