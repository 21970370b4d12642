#include "server/workers/load_progress.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "parallel/segment/segment.h"

namespace tessera::server {

double LoadedPart(const parallel::HostSegment& segment) {
  double sum = 0;
  for (int rank = 0; rank < segment.ranks(); ++rank) {
    const parallel::host_layout::LoadReport& report = segment.Load(rank);
    const uint64_t total = report.total.load(std::memory_order_relaxed);
    const uint64_t read = std::min(report.read.load(std::memory_order_relaxed), total);
    if (total > 0) sum += static_cast<double>(read) / static_cast<double>(total);
  }
  return sum / segment.ranks();
}

}  // namespace tessera::server
