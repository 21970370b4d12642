// GrpcServer serves the public API over gRPC: tessera.v1.ImageService, grpc.health.v1 and, on loopback, reflection.
// Admission and errors are those of HTTP.
//
// Connections are accepted by a ConnectionAcceptor and passed to gRPC, because gRPC would stop accepting for good after
// it had once run out of descriptors.
//
// Debian's gRPC lacks fixes against hostile peers. Therefore it listens on loopback only, or elsewhere if the
// configuration says that a proxy stands in front (behind_proxy).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/calls/call_gate.h"
#include "server/calls/call_record.h"

namespace tessera::server {

class ImageService;

struct GrpcServerOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;  // 0: any free port
  bool behind_proxy = false;
  CallBeginner begin;  // may be null
  CallRecorder record;
  std::function<int()> highest_descriptor;            // see HttpLimits; may be null
  std::function<void()> no_descriptor;                // see HttpServerOptions; may be null
  std::function<bool()> make_room;                    // closes other connections to free descriptors; may be null
  absl::Duration idle_time = absl::Seconds(75);       // a connection without calls is closed after this time
  absl::Duration handshake_time = absl::Seconds(10);  // until HTTP/2's preface and settings are complete
};

class GrpcServer {
 public:
  virtual ~GrpcServer() = default;  // ends every call at once

  // Both must outlive the server. INVALID_ARGUMENT for an address other than loopback without behind_proxy, UNAVAILABLE
  // if it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options, ImageService& service,
                                                           CallGate& gate);

  virtual uint16_t port() const = 0;

  // Accepts no more calls, lets running ones finish until `timeout` has passed, and ends the rest.
  virtual void Drain(absl::Duration timeout) = 0;
};

}  // namespace tessera::server
