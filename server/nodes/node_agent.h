// NodeAgent lends this host's devices to a controller: it joins the controller, starts the ranks that it requests,
// transfers their control channels and segments over one stream, and rejoins when the stream ends. All ranks end with
// the stream over which they were requested; a rank that dies ends nothing else.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/log/log_line.h"
#include "server/content/content_store.h"
#include "server/nodes/node_files.h"

namespace grpc {
class ClientContext;
}

namespace tessera::server {

struct NodeAgentOptions {
  std::string controller;  // HOST:PORT
  NodeFiles files;
  std::string name;
  std::vector<std::string> devices;                // names that IsNodeDevice accepts
  std::string version;                             // version of its worker program
  std::string content_folder = {};                 // keeps the contents that its ranks read; empty: it takes none
  absl::Duration join_timeout = absl::Minutes(5);  // for the first join, while the controller does not answer
  absl::Duration first_back_off = absl::Milliseconds(200);
  std::function<void()> joined = nullptr;  // may be null
  base::EventLog log;
};

class NodeAgent final {
 public:
  explicit NodeAgent(NodeAgentOptions options);

  // Runs until Stop and then returns OK. Errors: the first join fails, after the timeout or at once if the controller
  // refuses it; ABORTED at any time if a later process with the same name has joined. Must be called on a thread that
  // lives as long as the process.
  absl::Status Run();
  // May be called from any thread.
  void Stop();

 private:
  class Session;

  absl::Status JoinOnce(absl::Duration timeout);
  bool Pause(absl::Duration time);  // false: Stop was called

  const NodeAgentOptions options_;
  const uint64_t incarnation_;
  const std::unique_ptr<ContentStore> contents_;
  bool has_joined_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool stopping_ = false;
  grpc::ClientContext* context_ = nullptr;  // of the current stream
};

// Returns the version that the worker program prints, or an error.
absl::StatusOr<std::string> VersionOfWorker();

}  // namespace tessera::server
