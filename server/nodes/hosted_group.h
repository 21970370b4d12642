// HostedGroup holds the ranks of one group that this node executes: their processes, the segment that they share, and
// the data that is transferred between both and the controller.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "parallel/remote/segment_mirror.h"
#include "server/nodes/byte_pump.h"
#include "server/workers/worker_process.h"
#include "tessera/internal/node.pb.h"

namespace tessera::server {

class HostedRank;

class HostedGroup final {
 public:
  using Send = std::function<void(internal::FromNode message)>;  // does not wait; thread-safe

  // Must be called on a thread that lives as long as the ranks. Every length and number is checked; INVALID_ARGUMENT
  // for an invalid order. A rank that cannot be started counts as ended at once.
  static absl::StatusOr<std::unique_ptr<HostedGroup>> Start(const internal::StartGroup& start, Send send);
  ~HostedGroup();  // kills the running ranks

  HostedGroup(const HostedGroup&) = delete;
  HostedGroup& operator=(const HostedGroup&) = delete;

  // Ignore ranks that are not of this group.
  void OnBytes(uint64_t rank, const std::string& bytes);
  void Kill(uint64_t rank);
  absl::Status OnSegment(const std::string& updates);
  void AddStates(internal::Beat& beat);

 private:
  HostedGroup(uint64_t id, std::shared_ptr<parallel::HostSegment> segment, std::vector<int> host_of_rank, int host,
              Send send);
  void Carry();

  const uint64_t id_;
  const Send send_;
  const std::shared_ptr<parallel::HostSegment> segment_;
  parallel::SegmentMirror mirror_;
  std::map<uint64_t, std::unique_ptr<HostedRank>> ranks_;
  std::atomic<bool> ending_ = false;
  std::thread carrier_;
};

}  // namespace tessera::server
