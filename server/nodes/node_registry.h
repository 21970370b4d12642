// The nodes that have joined this server, and the ranks and groups that run on them.
//
// A node is known by its name. Of two processes of one name the one that joined last counts: its predecessor is fenced,
// all ranks of that have ended, and nothing that it still says is heard, though its connection may seem alive, nor may
// it join again. Each admission has an epoch of its own, which every message carries. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/log_line.h"
#include "server/api/node_info.h"
#include "server/nodes/node_rank.h"
#include "server/workers/remote_hosts.h"
#include "tessera/internal/node.pb.h"

namespace tessera::server {

// The connection of one node. Thread-safe.
class NodeLink {
 public:
  virtual ~NodeLink() = default;
  virtual void Send(internal::ToNode message) = 0;  // without waiting
  virtual void Cancel() = 0;                        // ends the connection without waiting
};

struct NodeRegistryOptions {
  std::string version;                          // of the worker program that nodes must have too
  absl::Duration join_wait = absl::Seconds(5);  // that a group waits for its nodes before it gives up
  std::function<void()> joined = nullptr;       // a node is there that was not; null: nobody asks
  base::EventLog log;
};

class NodeRegistry final : public RemoteHosts {
 public:
  explicit NodeRegistry(NodeRegistryOptions options);
  ~NodeRegistry() override;  // every connection must have ended

  // The epoch of a node that says this. FAILED_PRECONDITION for a worker of another version, INVALID_ARGUMENT for a
  // name or devices that cannot be, ABORTED where a later incarnation has joined.
  absl::StatusOr<uint64_t> Admit(const internal::NodeHello& hello, std::shared_ptr<NodeLink> link,
                                 internal::NodeWelcome welcome = {});
  // Of a connection that was admitted under that name. An error: the node says what it cannot, and the connection is to
  // end. What it says under another epoch than the node's present one counts for nothing.
  absl::Status Receive(const std::string& node, const internal::FromNode& message);
  // Its connection has ended: so have all its ranks, for this reason. Nothing is done where a later one has joined.
  void Lose(const std::string& node, uint64_t epoch, const std::string& reason);

  absl::StatusOr<std::unique_ptr<RemoteRanks>> Start(const RemoteRanksRequest& request) override;

  // Groups that wait for their nodes give up, and nobody is told of nodes any more.
  void Stop();

  std::vector<NodeInfo> Infos() const override;

 private:
  class Group;  // one whose ranks run on several hosts
  class Ranks;  // what its worker group holds

  struct Node {
    std::vector<std::string> devices;
    int processors = 0;
    uint64_t incarnation = 0, epoch = 0;  // 0: none yet
    std::deque<uint64_t> fenced;          // earlier incarnations
    std::shared_ptr<NodeLink> link;       // null: it is not connected
    absl::Time changed;                   // when it joined, or was lost
    uint64_t last_rank = 0;               // of this epoch
    std::map<uint64_t, std::shared_ptr<NodeRankState>> ranks;
  };

  absl::Status CheckHello(const internal::NodeHello& hello) const;
  // What is to be told once the mutex is released: a rank's events may call back.
  std::vector<std::shared_ptr<NodeRankState>> TakeRanks(Node& node);
  // With mutex_ held. The error tells what is missing, and names the nearest.
  absl::Status CheckDevices(const RemoteRanksRequest& request, bool& may_come) const;
  absl::Status WaitForNodes(std::unique_lock<std::mutex>& lock, const RemoteRanksRequest& request);
  absl::StatusOr<std::shared_ptr<NodeRankState>> AddRank(Node& node, const std::string& name);
  void Forget(uint64_t group);
  void Log(base::LogLevel level, const std::string& node, const std::string& text) const;

  const NodeRegistryOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::map<std::string, Node> nodes_;
  std::map<uint64_t, std::shared_ptr<Group>> groups_;
  uint64_t last_epoch_ = 0, last_group_ = 0;
  bool stopping_ = false;
};

}  // namespace tessera::server
