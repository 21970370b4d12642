// Which rank of a worker group this process is. LibTorch-free.
#pragma once

#include <memory>

#include "parallel/plan/layout.h"
#include "parallel/segment/segment.h"

namespace tessera::runtime {

struct WorkerRank {
  parallel::Layout layout;
  int rank = 0;
  // Made with the groups of the layout's mesh. Null only for a rank that is alone and not watched.
  std::shared_ptr<parallel::HostSegment> segment;
};

}  // namespace tessera::runtime
