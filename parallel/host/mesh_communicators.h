// The communicators of one rank for every axis of a mesh, over one segment of its host.
#pragma once

#include <memory>

#include "parallel/host/host_communicator.h"
#include "parallel/rank_groups.h"
#include "parallel/segment/mesh_groups.h"

namespace tessera::parallel {

class MeshCommunicators {
 public:
  // `segment` was made with MeshGroups, of which it may hold more.
  MeshCommunicators(const std::shared_ptr<HostSegment>& segment, int rank, const HostCommunicatorOptions& options);

  // Valid as long as this is.
  RankGroups groups() const {
    return {.cfg = *cfg_,
            .pipe = *pipe_,
            .sequence = *sequence_,
            .ring = *ring_,
            .ulysses = *ulysses_,
            .tensor = *tensor_,
            .world = *world_};
  }

 private:
  std::unique_ptr<Communicator> cfg_, pipe_, sequence_, ring_, ulysses_, tensor_, world_;
};

}  // namespace tessera::parallel
