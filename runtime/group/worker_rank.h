// WorkerRank is this process's rank in a worker group. LibTorch-free.
#pragma once

#include <memory>

#include "parallel/plan/layout.h"
#include "parallel/segment/segment.h"

namespace tessera::runtime {

class NcclLog;

struct WorkerRank {
  parallel::Layout layout;
  int data = 0;  // number of data-parallel replicas of the layout's ranks in training; 0: the rank only generates
                 // images
  int rank = 0;  // among the ranks of all replicas; data is the outermost axis
  // Created with the groups of the layout's mesh, and with those of training if the rank trains. Null only for a single
  // rank that is not watched.
  std::shared_ptr<parallel::HostSegment> segment;
  std::shared_ptr<const NcclLog> nccl_log;  // null if the log is not read

  int replicas() const { return data > 0 ? data : 1; }
  int ranks() const { return replicas() * layout.ranks(); }
  int rank_in_layout() const { return rank % layout.ranks(); }
};

}  // namespace tessera::runtime
