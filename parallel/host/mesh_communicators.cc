#include "parallel/host/mesh_communicators.h"

namespace tessera {
namespace {

constexpr char kCfg[] = "cfg", kPipe[] = "pipe", kSequence[] = "sequence", kRing[] = "ring", kUlysses[] = "ulysses",
               kTensor[] = "tensor";

}  // namespace

std::vector<HostGroup> MeshGroups(const Mesh& mesh) {
  std::vector<HostGroup> groups;
  const auto add = [&](const char* name, std::initializer_list<Axis> axes) {
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      std::vector<int> ranks = mesh.Group(rank, axes);
      // Each group once: by its first rank.
      if (ranks.size() > 1 && ranks.front() == rank) groups.push_back({.name = name, .ranks = std::move(ranks)});
    }
  };
  add(kCfg, {Axis::kCfg});
  add(kPipe, {Axis::kPipe});
  add(kSequence, {Axis::kRing, Axis::kUlysses});
  add(kRing, {Axis::kRing});
  add(kUlysses, {Axis::kUlysses});
  add(kTensor, {Axis::kTensor});
  return groups;
}

MeshCommunicators::MeshCommunicators(const std::shared_ptr<HostSegment>& segment, int rank,
                                     const HostCommunicatorOptions& options)
    : cfg_(JoinGroup(segment, kCfg, rank, options)),
      pipe_(JoinGroup(segment, kPipe, rank, options)),
      sequence_(JoinGroup(segment, kSequence, rank, options)),
      ring_(JoinGroup(segment, kRing, rank, options)),
      ulysses_(JoinGroup(segment, kUlysses, rank, options)),
      tensor_(JoinGroup(segment, kTensor, rank, options)) {}

}  // namespace tessera
