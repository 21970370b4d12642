// The public API over gRPC: tessera.v1.ImageService, grpc.health.v1 and, on loopback, reflection. Same admission and
// errors as HTTP.
//
// The server listens anew, on the same port, when gRPC has stopped to accept connections (listener_check.h).
//
// Debian's gRPC lacks fixes against hostile peers, so it listens on loopback, or beyond it only where the
// configuration says that a proxy stands in front (behind_proxy).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/service/call_gate.h"
#include "server/service/call_record.h"
#include "server/service/image_request.h"
#include "server/service/image_service.h"

namespace tessera {

struct GrpcServerOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  bool behind_proxy = false;
  RequestLimits limits;
  CallRecorder record;
  std::function<void(const std::string& message)> log;  // that it had to listen again; may be empty
  int task_threads = 4;
};

class GrpcServer {
 public:
  virtual ~GrpcServer() = default;  // ends every call at once

  // Both must outlive the server. INVALID_ARGUMENT for an address beyond loopback without behind_proxy, UNAVAILABLE
  // where it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options, ImageService& service,
                                                           CallGate& gate);

  virtual uint16_t port() const = 0;

  // Accepts no more calls, lets those under way finish until `patience` is over, and ends the rest.
  virtual void Drain(absl::Duration patience) = 0;
};

}  // namespace tessera
