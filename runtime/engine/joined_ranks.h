// JoinedRanks connects this rank with the other ranks of its group: its communicators on one device, and what text
// encoders and the autoencoder know of the ranks.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>

#include "parallel/communicator.h"
#include "parallel/forward_context.h"
#include "parallel/host/mesh_communicators.h"
#include "parallel/plan/mesh.h"
#include "parallel/rank_groups.h"
#include "runtime/device/mark.h"
#include "runtime/group/worker_rank.h"
#include "runtime/training/training_groups.h"

namespace tessera::runtime {

// Returns the mesh of a layout whose ranks are valid.
parallel::Mesh MeshOf(const parallel::Layout& layout);

class JoinedRanks final {
 public:
  // Collective, and throws CommError if the ranks cannot connect. `place` outlives this object.
  JoinedRanks(at::Device device, const WorkerRank& place);

  // Makes all connections before the first step, and writes to the log how the ranks exchange tensors. Collective.
  void WarmUp(at::Device device) const;

  const parallel::RankGroups& groups() const { return groups_; }
  const TrainingGroups& training() const { return training_; }
  const parallel::ForwardContext& context() const { return context_; }

  // Returns whether `holds` on every rank, all of which make this call.
  bool OnEveryRank(bool holds) const;

  // Waits until the device has reached the mark. On any thread. Throws CommError if another rank ends the wait.
  void WaitFor(const Mark& mark) const;

 private:
  const WorkerRank& place_;
  parallel::SingleRank one_;
  const std::unique_ptr<parallel::MeshCommunicators> communicators_;  // of several ranks
  const std::unique_ptr<HostTrainingGroups> training_communicators_;  // in place of them, where the ranks train
  const TrainingGroups training_;                                     // of ranks that do not train, each alone
  const parallel::RankGroups groups_;
  parallel::LocalAttention attention_;
  const parallel::ForwardContext context_;
};

}  // namespace tessera::runtime
