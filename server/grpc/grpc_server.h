// The public API over gRPC: tessera.v1.ImageService, grpc.health.v1 and, on loopback, reflection. Same admission and
// errors as HTTP.
//
// Connections are accepted here (connection_acceptor.h) and handed to gRPC, which would accept none any more after it
// had met a lack of descriptors once.
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
#include "server/api/image_service.h"
#include "server/calls/call_gate.h"
#include "server/calls/call_record.h"

namespace tessera::server {

struct GrpcServerOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  bool behind_proxy = false;
  CallRecorder record;
  std::function<int()> highest_descriptor;            // as HttpLimits has it; may be null
  std::function<void()> no_descriptor;                // as HttpServerOptions has it; may be null
  std::function<bool()> make_room;                    // for a connection beyond it, by closing others; may be null
  absl::Duration idle_time = absl::Seconds(75);       // without a call, after which a connection is closed
  absl::Duration handshake_time = absl::Seconds(10);  // to the end of HTTP/2's first words
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

  // Accepts no more calls, lets those under way finish until `timeout` has passed, and ends the rest.
  virtual void Drain(absl::Duration timeout) = 0;
};

}  // namespace tessera::server
