// The communicators of one rank for every axis of a mesh, made once its device is known.
#pragma once

#include <memory>

#include "parallel/host/host_communicator.h"
#include "parallel/rank_groups.h"
#include "parallel/segment/mesh_groups.h"

namespace tessera::parallel {

class MeshCommunicators {
 public:
  // For tensors of `device`: those of every device go through the memory of the host. `segment` was made with
  // MeshGroups, of which it may hold more.
  MeshCommunicators(at::Device device, const std::shared_ptr<HostSegment>& segment, int rank,
                    const HostCommunicatorOptions& options);

  // Valid as long as this is.
  RankGroups groups() const {
    return {.cfg = *cfg_,
            .pipe = *pipe_,
            .sequence = *sequence_,
            .ring = *ring_,
            .ulysses = *ulysses_,
            .tensor = *tensor_,
            .world = *world_,
            .control = *control_};
  }

 private:
  std::unique_ptr<Communicator> cfg_, pipe_, sequence_, ring_, ulysses_, tensor_, world_, control_;
};

}  // namespace tessera::parallel
