// ServerEdges are all listeners of a server by its configuration: HTTP with TLS, gRPC and admin, on one service and one
// gate.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/log/log_line.h"
#include "server/calls/api_keys.h"
#include "server/config/server_config.h"

namespace tessera::server {

class CallSpans;
class ImageService;

struct EdgeReports {
  base::EventLog call;                                 // each call over HTTP or gRPC
  std::function<void(const ApiKeys::Shares&)> shares;  // of the keys, at the start and after each reload
  // Reloads of keys or certificates, failed ones too, and connections refused for lack of descriptors.
  base::EventLog log;
  std::function<int64_t()> dropped_log_lines;  // since the start; null: unknown
  const CallSpans* spans = nullptr;            // of the calls over HTTP and gRPC; null: none; outlives the edges
  std::function<std::string()> more_metrics;   // complete families in the text format; may be null
};

class ServerEdges {
 public:
  virtual ~ServerEdges() = default;  // ends every call at once

  // `service` must outlive the edges. Returns the errors of the listeners, the keys file, the TLS files and the
  // files that the configuration names otherwise; after an error no listener is open.
  static absl::StatusOr<std::unique_ptr<ServerEdges>> Start(const ServerConfig& config, ImageService& service,
                                                            EdgeReports reports);

  // Return 0 for a listener that is off.
  virtual uint16_t http_port() const = 0;
  virtual uint16_t grpc_port() const = 0;
  virtual uint16_t admin_port() const = 0;

  // Applies the configuration's limits of requests, its hosts of pictures and its check of input, and reads the keys
  // file again, from the next call on. An error of the keys file or of the check's file of headers has changed nothing.
  virtual absl::Status Reload(const ServerConfig& config) = 0;

  // HTTP and gRPC accept no more calls and let running ones finish until `timeout` has passed; admin stays open.
  virtual void Drain(absl::Duration timeout) = 0;
};

}  // namespace tessera::server
