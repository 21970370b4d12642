#include "parallel/segment/mesh_groups.h"

#include <initializer_list>
#include <utility>

namespace tessera::parallel {

namespace {

void AddGroups(const Mesh& mesh, const char* name, std::initializer_list<Axis> axes, std::vector<HostGroup>& groups) {
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    std::vector<int> ranks = mesh.Group(rank, axes);
    // Adds each group once, at its first rank.
    if (ranks.size() > 1 && ranks.front() == rank) groups.push_back({.name = name, .ranks = std::move(ranks)});
  }
}

}  // namespace

std::vector<HostGroup> MeshGroups(const Mesh& mesh) {
  std::vector<HostGroup> groups;
  const auto add = [&](const char* name, std::initializer_list<Axis> axes) { AddGroups(mesh, name, axes, groups); };
  add(MeshGroupName::kCfg, {Axis::kCfg});
  add(MeshGroupName::kPipe, {Axis::kPipe});
  add(MeshGroupName::kSequence, {Axis::kRing, Axis::kUlysses});
  add(MeshGroupName::kRing, {Axis::kRing});
  add(MeshGroupName::kUlysses, {Axis::kUlysses});
  add(MeshGroupName::kTensor, {Axis::kTensor});
  for (const char* all : {MeshGroupName::kWorld, MeshGroupName::kControl}) {
    add(all, {Axis::kCfg, Axis::kPipe, Axis::kRing, Axis::kUlysses, Axis::kTensor});
  }
  const std::initializer_list<Axis> rows = {Axis::kRing, Axis::kUlysses, Axis::kTensor};
  if (mesh.Group(0, rows).size() < static_cast<size_t>(mesh.world_size())) add(MeshGroupName::kRows, rows);
  return groups;
}

std::vector<HostGroup> TrainingMeshGroups(const Mesh& mesh) {
  std::vector<HostGroup> groups = MeshGroups(mesh);
  AddGroups(mesh, MeshGroupName::kData, {Axis::kData}, groups);
  AddGroups(mesh, MeshGroupName::kAll,
            {Axis::kData, Axis::kCfg, Axis::kPipe, Axis::kRing, Axis::kUlysses, Axis::kTensor}, groups);
  return groups;
}

}  // namespace tessera::parallel
