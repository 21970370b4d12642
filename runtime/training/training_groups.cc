#include "runtime/training/training_groups.h"

#include "parallel/segment/mesh_groups.h"

namespace tessera::runtime {

HostTrainingGroups::HostTrainingGroups(at::Device device, const std::shared_ptr<parallel::HostSegment>& segment,
                                       int rank, const parallel::HostCommunicatorOptions& options)
    : model_(device, segment, rank, options),
      data_(parallel::JoinGroup(segment, parallel::MeshGroupName::kData, rank, options)),
      all_(parallel::JoinGroup(segment, parallel::MeshGroupName::kAll, rank, options)) {}

}  // namespace tessera::runtime
