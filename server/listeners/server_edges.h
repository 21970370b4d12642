// All listeners of a server, as its configuration says: HTTP with TLS, gRPC, admin; over one service and one gate.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/log_line.h"
#include "server/api/image_service.h"
#include "server/calls/api_keys.h"
#include "server/config/server_config.h"

namespace tessera::server {

struct EdgeReports {
  base::EventLog call;                                 // each call of HTTP or gRPC
  std::function<void(const ApiKeys::Shares&)> shares;  // of the keys, at the start and when they were read again
  // Keys or certificates were read again, or could not be; a listener listens anew.
  base::EventLog log;
  std::function<int64_t()> dropped_log_lines;  // since the start; null: not known
};

class ServerEdges {
 public:
  virtual ~ServerEdges() = default;  // ends every call at once

  // `service` must outlive the edges. The errors of the listeners, the keys file and the TLS files; nothing listens
  // then.
  static absl::StatusOr<std::unique_ptr<ServerEdges>> Start(const ServerConfig& config, ImageService& service,
                                                            EdgeReports reports);

  // 0 for a listener that is off.
  virtual uint16_t http_port() const = 0;
  virtual uint16_t grpc_port() const = 0;
  virtual uint16_t admin_port() const = 0;

  // From the next call on: the keys file, read anew, and the limits of requests, as the configuration has them. An
  // error of the keys file has changed nothing.
  virtual absl::Status Reload(const ServerConfig& config) = 0;

  // HTTP and gRPC take no more calls and let those under way finish until `timeout` has passed; admin goes on.
  virtual void Drain(absl::Duration timeout) = 0;
};

}  // namespace tessera::server
