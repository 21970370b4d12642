// A node: lends this host's devices to a controller. Joins it, starts the ranks that it asks for, carries their control
// channels and segments over one stream, and joins again when that ends. All ranks end with the stream that they were
// asked for over; a rank that dies ends nothing else.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/log_line.h"
#include "server/nodes/node_files.h"

namespace grpc {
class ClientContext;
}

namespace tessera::server {

struct NodeAgentOptions {
  std::string controller;  // HOST:PORT
  NodeFiles files;
  std::string name;
  std::vector<std::string> devices;                // as IsNodeDevice has them
  std::string version;                             // of its worker program
  absl::Duration join_timeout = absl::Minutes(5);  // until it has joined for the first time, while nobody answers
  absl::Duration first_back_off = absl::Milliseconds(200), longest_back_off = absl::Seconds(5);
  std::function<void()> joined = nullptr;  // may be null
  base::EventLog log;
};

class NodeAgent final {
 public:
  explicit NodeAgent(NodeAgentOptions options);

  // Until Stop: OK then. An error: what keeps the node from joining for the first time, after the timeout or at once
  // where the controller says so; ABORTED whenever a later process of its name has joined. To be called on a thread
  // that lives as long as the process.
  absl::Status Run();
  // From any thread.
  void Stop();

 private:
  class Session;

  absl::Status JoinOnce(absl::Duration timeout);
  bool Pause(absl::Duration time);  // false: it was stopped

  const NodeAgentOptions options_;
  const uint64_t incarnation_;
  bool has_joined_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool stopping_ = false;
  grpc::ClientContext* context_ = nullptr;  // of the stream there is
};

// What the worker program says of itself; an error where it is none.
absl::StatusOr<std::string> VersionOfWorker();

}  // namespace tessera::server
