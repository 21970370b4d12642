// NodeListener is the gRPC server through which nodes join. It accepts only nodes with a certificate of the configured
// authority and with the token. Both are read again for every node.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/log/log_line.h"
#include "server/nodes/node_files.h"
#include "server/nodes/node_registry.h"

namespace tessera::server {

struct NodeListenerOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;  // 0: any free port
  NodeFiles files;
  absl::Duration beat = absl::Seconds(1);        // interval between two messages of one side
  absl::Duration lost_after = absl::Seconds(5);  // without a message
  base::EventLog log;
};

class NodeListener {
 public:
  virtual ~NodeListener() = default;  // ends every connection

  // The registry outlives it. INVALID_ARGUMENT for unusable files, UNAVAILABLE if it cannot listen.
  static absl::StatusOr<std::unique_ptr<NodeListener>> Start(const NodeListenerOptions& options,
                                                             NodeRegistry& registry);

  virtual uint16_t port() const = 0;
};

}  // namespace tessera::server
