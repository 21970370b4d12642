#include "parallel/host/mesh_communicators.h"

namespace tessera::parallel {

MeshCommunicators::MeshCommunicators(at::Device, const std::shared_ptr<HostSegment>& segment, int rank,
                                     const HostCommunicatorOptions& options)
    : cfg_(JoinGroup(segment, MeshGroupName::kCfg, rank, options)),
      pipe_(JoinGroup(segment, MeshGroupName::kPipe, rank, options)),
      sequence_(JoinGroup(segment, MeshGroupName::kSequence, rank, options)),
      ring_(JoinGroup(segment, MeshGroupName::kRing, rank, options)),
      ulysses_(JoinGroup(segment, MeshGroupName::kUlysses, rank, options)),
      tensor_(JoinGroup(segment, MeshGroupName::kTensor, rank, options)),
      world_(JoinGroup(segment, MeshGroupName::kWorld, rank, options)),
      control_(JoinGroup(segment, MeshGroupName::kControl, rank, options)) {}

}  // namespace tessera::parallel
