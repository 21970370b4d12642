// Ranks that are threads of this process: what most tests of parallel code run on, and whatever else compares layouts
// without starting processes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/host/host_communicator.h"
#include "parallel/segment/segment.h"

namespace tessera {

struct ThreadRanksOptions {
  std::vector<parallel::HostGroup> groups;  // the world is added unless a group has its name
  parallel::HostCommunicatorOptions communicator{.deadline = std::chrono::seconds(20)};
  int64_t slot_bytes = 64 << 10;
  int slots = 4;
  std::chrono::seconds deadline{100};  // of all ranks together
};

// One rank, as its own thread sees it.
class ThreadRank {
 public:
  ThreadRank(std::shared_ptr<parallel::HostSegment> segment, int rank,
             const parallel::HostCommunicatorOptions& options);

  int rank() const { return rank_; }
  int ranks() const { return segment_->ranks(); }
  parallel::HostSegment& segment() const { return *segment_; }
  const std::shared_ptr<parallel::HostSegment>& shared_segment() const { return segment_; }
  parallel::Communicator& world() { return *world_; }

  // This rank's communicator of the group of that name which holds it; of a group of one where there is none.
  std::unique_ptr<parallel::Communicator> Join(std::string_view group) const;

 private:
  std::shared_ptr<parallel::HostSegment> segment_;
  int rank_;
  parallel::HostCommunicatorOptions options_;
  std::unique_ptr<parallel::Communicator> world_;
};

// Runs `body` once per rank, each in a thread of its own, LibTorch's operators single-threaded, and returns when all
// have ended. A rank that throws poisons the others; of the exceptions that are not echoes of another's, the one of the
// lowest rank is thrown again. Ranks that are not done by the deadline are poisoned; if they do not end then, the
// process aborts.
void RunRanks(int ranks, const std::function<void(ThreadRank&)>& body, const ThreadRanksOptions& options = {});

}  // namespace tessera
