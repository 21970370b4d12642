// Which rank of a worker group this process is. LibTorch-free.
#pragma once

#include <memory>

#include "parallel/plan/layout.h"
#include "parallel/segment/segment.h"

namespace tessera::runtime {

class NcclLog;

struct WorkerRank {
  parallel::Layout layout;
  int data = 0;  // of training: so many times the ranks of the layout share out the data; 0: the rank makes images only
  int rank = 0;  // among all of them; data is the outermost axis
  // Made with the groups of the mesh of the layout, those of training if it trains. Null only for a rank that is alone
  // and not watched.
  std::shared_ptr<parallel::HostSegment> segment;
  std::shared_ptr<const NcclLog> nccl_log;  // null where nobody reads it

  int replicas() const { return data > 0 ? data : 1; }
  int ranks() const { return replicas() * layout.ranks(); }
  int rank_in_layout() const { return rank % layout.ranks(); }
  int data_rank() const { return rank / layout.ranks(); }
};

}  // namespace tessera::runtime
