// Where nodes join: a gRPC server of its own, which talks to nobody without a certificate of the configured authority
// and the token. Both are read anew for every node.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/log_line.h"
#include "server/nodes/node_files.h"
#include "server/nodes/node_registry.h"

namespace tessera::server {

struct NodeListenerOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  NodeFiles files;
  absl::Duration beat = absl::Seconds(1);        // between two messages of one side
  absl::Duration lost_after = absl::Seconds(5);  // of silence
  base::EventLog log;
};

class NodeListener {
 public:
  virtual ~NodeListener() = default;  // ends every connection

  // The registry outlives it. INVALID_ARGUMENT for files that cannot be used, UNAVAILABLE where it cannot listen.
  static absl::StatusOr<std::unique_ptr<NodeListener>> Start(const NodeListenerOptions& options,
                                                             NodeRegistry& registry);

  virtual uint16_t port() const = 0;
};

}  // namespace tessera::server
