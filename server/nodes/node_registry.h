// NodeRegistry holds the nodes that have joined this server, and the ranks and groups that run on them.
//
// A node is identified by its name. Of two processes with one name, the one that joined last counts. The earlier one is
// fenced: all its ranks have ended, its messages are ignored even if its connection seems alive, and it cannot join
// again. Each admission has a unique epoch, which every message carries. Thread-safe.
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
#include "base/log/log_line.h"
#include "server/api/node_info.h"
#include "server/nodes/node_rank.h"
#include "server/workers/remote_hosts.h"
#include "tessera/internal/node.pb.h"

namespace tessera::server {

// The connection of one node. Thread-safe.
class NodeLink {
 public:
  virtual ~NodeLink() = default;
  virtual void Send(internal::ToNode message) = 0;  // does not wait
  virtual void Cancel() = 0;                        // ends the connection without waiting
};

struct NodeRegistryOptions {
  std::string version;                          // version that the nodes' worker program must have
  absl::Duration join_wait = absl::Seconds(5);  // how long a group waits for its nodes
  std::function<void()> joined = nullptr;       // called when a node has joined; may be null
  base::EventLog log;
};

inline constexpr size_t kMostShown = 100;  // bytes of a peer's text in a message

class NodeRegistry final : public RemoteHosts {
 public:
  explicit NodeRegistry(NodeRegistryOptions options);
  ~NodeRegistry() override;  // every connection must have ended

  // Returns the epoch of a node that sends this hello. FAILED_PRECONDITION: its worker has another version.
  // INVALID_ARGUMENT: invalid name or devices. ABORTED: a later incarnation has joined.
  absl::StatusOr<uint64_t> Admit(const internal::NodeHello& hello, std::shared_ptr<NodeLink> link,
                                 internal::NodeWelcome welcome = {});
  // Handles a message of a connection that was admitted under that name. An error means that the message is invalid and
  // the connection must end. Messages of another epoch than the node's current one are ignored.
  absl::Status Receive(const std::string& node, const internal::FromNode& message);
  // The node's connection has ended, and so have all its ranks, for this reason. Does nothing if a later connection has
  // joined.
  void Lose(const std::string& node, uint64_t epoch, const std::string& reason);

  absl::StatusOr<std::unique_ptr<RemoteRanks>> Start(const RemoteRanksRequest& request) override;

  // Makes groups stop waiting for their nodes, and ends the calls of `joined`.
  void Stop();

  std::vector<NodeInfo> Infos() const override;

 private:
  class Group;  // a group whose ranks run on several hosts
  class Ranks;  // the ranks that the worker group holds

  struct Node {
    std::vector<std::string> devices;
    int processors = 0;
    uint64_t incarnation = 0, epoch = 0;  // 0: none yet
    std::deque<uint64_t> fenced;          // earlier incarnations
    std::shared_ptr<NodeLink> link;       // null: not connected
    absl::Time changed;                   // time of the last join or loss
    uint64_t last_rank = 0;               // within this epoch
    std::map<uint64_t, std::shared_ptr<NodeRankState>> ranks;
  };

  absl::Status CheckHello(const internal::NodeHello& hello) const;
  // Returns the ranks to notify after the mutex is released, because their events may call back.
  std::vector<std::shared_ptr<NodeRankState>> TakeRanks(Node& node);
  // Requires mutex_. The error names what is missing and the nearest name.
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
