// TrainingGroups holds the communicators of one rank in training: with the other ranks of its replica of the model, and
// with the other replicas.
#pragma once

#include <memory>

#include "parallel/host/mesh_communicators.h"
#include "parallel/rank_groups.h"

namespace tessera::runtime {

struct TrainingGroups {
  // Returns the groups of a single rank.
  static TrainingGroups Alone(parallel::SingleRank& one) {
    return {.model = parallel::RankGroups::Alone(one), .data = one, .all = one};
  }

  parallel::RankGroups model;    // of one replica: its `world` are the ranks that share a batch
  parallel::Communicator& data;  // the ranks at the same position in every replica, which share the data out
  parallel::Communicator& all;   // all ranks, in host memory
};

// Owns the communicators of one rank with the ranks of one host.
class HostTrainingGroups final {
 public:
  // Like MeshCommunicators; `segment` must have been created with at least the groups of parallel::TrainingMeshGroups.
  HostTrainingGroups(at::Device device, const std::shared_ptr<parallel::HostSegment>& segment, int rank,
                     const parallel::HostCommunicatorOptions& options);

  // Valid during the lifetime of this object.
  TrainingGroups groups() const { return {.model = model_.groups(), .data = *data_, .all = *all_}; }

 private:
  parallel::MeshCommunicators model_;
  std::unique_ptr<parallel::Communicator> data_, all_;
};

}  // namespace tessera::runtime
