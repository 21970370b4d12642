#include "runtime/training/training_groups.h"

#include <numeric>
#include <utility>

namespace tessera::runtime {
namespace {

constexpr char kData[] = "data";
constexpr char kAll[] = "all";

}  // namespace

std::vector<parallel::HostGroup> TrainingMeshGroups(const parallel::Mesh& mesh) {
  std::vector<parallel::HostGroup> groups = parallel::MeshGroups(mesh);
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    std::vector<int> replicas = mesh.Group(rank, parallel::Axis::kData);
    // Each group once: by its first rank.
    if (replicas.size() > 1 && replicas.front() == rank)
      groups.push_back({.name = kData, .ranks = std::move(replicas)});
  }
  if (mesh.world_size() > 1) {
    std::vector<int> all(static_cast<size_t>(mesh.world_size()));
    std::iota(all.begin(), all.end(), 0);
    groups.push_back({.name = kAll, .ranks = std::move(all)});
  }
  return groups;
}

HostTrainingGroups::HostTrainingGroups(at::Device device, const std::shared_ptr<parallel::HostSegment>& segment,
                                       int rank, const parallel::HostCommunicatorOptions& options)
    : model_(device, segment, rank, options),
      data_(parallel::JoinGroup(segment, kData, rank, options)),
      all_(parallel::JoinGroup(segment, kAll, rank, options)) {}

}  // namespace tessera::runtime
