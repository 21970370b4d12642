// One rank's place among the ranks that train a model together: the replica of the model that it is a part of, and the
// replicas.
#pragma once

#include <memory>

#include "parallel/host/mesh_communicators.h"
#include "parallel/rank_groups.h"

namespace tessera::runtime {

struct TrainingGroups {
  // Every rank alone.
  static TrainingGroups Alone(parallel::SingleRank& one) {
    return {.model = parallel::RankGroups::Alone(one), .data = one, .all = one};
  }

  parallel::RankGroups model;    // of one replica: its `world` are the ranks that share a batch
  parallel::Communicator& data;  // the ranks of the same place in every replica, which share out the data
  parallel::Communicator& all;   // every rank, in host memory
};

// The communicators of one rank between the ranks of one host.
class HostTrainingGroups final {
 public:
  // As MeshCommunicators; `segment` was made with parallel::TrainingMeshGroups, of which it may hold more.
  HostTrainingGroups(at::Device device, const std::shared_ptr<parallel::HostSegment>& segment, int rank,
                     const parallel::HostCommunicatorOptions& options);

  // Valid as long as this is.
  TrainingGroups groups() const { return {.model = model_.groups(), .data = *data_, .all = *all_}; }

 private:
  parallel::MeshCommunicators model_;
  std::unique_ptr<parallel::Communicator> data_, all_;
};

}  // namespace tessera::runtime
