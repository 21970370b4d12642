// Runs ranks as threads of this process. Most tests of parallel code use it, as does other code that compares layouts
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
  std::chrono::seconds deadline{100};  // for all ranks together
};

// One rank, as seen by its thread.
class ThreadRank {
 public:
  ThreadRank(std::shared_ptr<parallel::HostSegment> segment, int rank,
             const parallel::HostCommunicatorOptions& options);

  int rank() const { return rank_; }
  int ranks() const { return segment_->ranks(); }
  parallel::HostSegment& segment() const { return *segment_; }
  const std::shared_ptr<parallel::HostSegment>& shared_segment() const { return segment_; }
  parallel::Communicator& world() { return *world_; }

  // Returns this rank's communicator of the group of that name that contains it. If no such group contains it, a
  // communicator of this rank alone.
  std::unique_ptr<parallel::Communicator> Join(std::string_view group) const;

 private:
  std::shared_ptr<parallel::HostSegment> segment_;
  int rank_;
  parallel::HostCommunicatorOptions options_;
  std::unique_ptr<parallel::Communicator> world_;
};

// Runs `body` once per rank, each in a separate thread with single-threaded LibTorch operators, and returns when all
// have ended. A rank that throws poisons the others. Of the exceptions that are not echoes of another rank's, the one
// of the lowest rank is rethrown. Ranks that are not done by the deadline are poisoned; if they still do not end, the
// process aborts.
void RunRanks(int ranks, const std::function<void(ThreadRank&)>& body, const ThreadRanksOptions& options = {});

}  // namespace tessera
