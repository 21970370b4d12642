// NodeRank is a rank on a node as its group on this host sees it. Its control channel is a pair of sockets, of which
// one end is forwarded over the node's stream.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/files/file_descriptor.h"
#include "server/nodes/byte_pump.h"
#include "server/nodes/content_sender.h"
#include "server/workers/rank_process.h"

namespace tessera::server {

// The state of a rank as its node reports it. Shared by the connection and the group's NodeRank. Thread-safe.
class NodeRankState {
 public:
  struct Calls {
    std::function<void(std::string bytes)> send;  // to the rank's control channel; empty bytes close it
    std::function<void()> kill;
    ContentSender::Send send_content;
  };

  static absl::StatusOr<std::shared_ptr<NodeRankState>> Create(std::string node, int processors, Calls calls);

  // Take the node's reports. `lost`: the connection to the host was lost.
  void OnBytes(const std::string& bytes);
  void OnState(bool stopped, uint64_t peak_memory_bytes);
  void OnEnded(const std::string& state, const std::string& last_output, bool lost);
  void OnContent(const internal::ContentState& state) { content_.OnState(state); }

 private:
  friend class NodeRank;
  NodeRankState(std::string node, int processors, Calls calls)
      : node_(std::move(node)), processors_(processors), calls_(std::move(calls)), content_(calls_.send_content) {}

  const std::string node_;
  const int processors_;
  const Calls calls_;
  ContentSender content_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  base::FileDescriptor client_;  // valid until Connect takes it
  bool ended_ = false, lost_ = false, stopped_ = false;
  uint64_t peak_memory_bytes_ = 0;
  std::string state_ = "is running", last_output_;
  std::unique_ptr<BytePump> pump_;  // never replaced, so it is used without the mutex
};

class NodeRank final : public RankProcess {
 public:
  explicit NodeRank(std::shared_ptr<NodeRankState> state) : state_(std::move(state)) {}
  ~NodeRank() override;

  absl::StatusOr<int> Connect(absl::Duration timeout) override;  // callable once
  bool WaitForExit(absl::Duration timeout) override;
  std::string StateText() override;
  bool IsStopped() const override;
  std::string LastOutput() override;
  uint64_t PeakMemoryBytes() const override;
  void Kill() override;
  pid_t pid() const override { return -1; }
  absl::StatusOr<WorkerIdentity> identity() const override;
  std::string node() const override { return state_->node_; }
  int processors() const override { return state_->processors_; }
  bool host_lost() const override;
  absl::StatusOr<std::string> BringContent(const std::string& digest, const std::string& path) override {
    return state_->content_.Bring(digest, path);
  }

 private:
  const std::shared_ptr<NodeRankState> state_;
};

}  // namespace tessera::server
