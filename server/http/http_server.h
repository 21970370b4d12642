// An HTTP/1.1 listener: connections, framing, limits and timeouts. What a request means is its handler's business.
//
// Bounded in every direction: connections and their descriptors, header and body bytes, bytes on the wire for one body,
// bytes of files on their way to clients, time for every phase. Where there is no room for a new connection, the one
// that has waited for a request longest is closed; where a request is under way on all of them, the new one is. Owns
// its threads; a handler and a reply may be used from any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/http/http_message.h"
#include "server/http/tls_certificates.h"

namespace tessera::server {

struct HttpLimits {
  size_t connections = 1024;
  // Asked for each new connection, whose number needs room where it is higher: what lies above is kept for other files
  // of the process. Null: none is.
  std::function<int()> highest_descriptor;
  size_t header_bytes = 16 << 10;
  size_t body_bytes = 1 << 20;
  // A stream whose client does not take what is written is closed when this much waits.
  size_t pending_bytes = 256 << 20;
  // Of bodies that are read while they are sent: what all connections hold of them together.
  size_t sending_bytes = 4 << 20;
  absl::Duration header_time = absl::Seconds(10);  // TLS handshake; first to last byte of the header
  absl::Duration body_time = absl::Seconds(30);    // the whole body
  absl::Duration idle_time = absl::Seconds(75);    // between two requests
  absl::Duration write_time = absl::Seconds(30);   // without the client taking a byte
};

struct HttpServerOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  HttpLimits limits;
  std::shared_ptr<TlsCertificates> tls;  // null: plain HTTP
  // Called where a connection finds no descriptor that it may keep, on any thread; must not block. May be null.
  std::function<void()> no_descriptor;
  // 0: two; one where there are two processors or fewer, because one of two wakes the other with every event, which a
  // small model's steps feel there.
  int connection_threads = 0;
  int handler_threads = 8;
};

// What one listener has counted since it began.
struct HttpConnectionCounts {
  size_t open = 0;
  uint64_t accepted = 0;
  uint64_t closed_idle = 0;  // to make room for another
  uint64_t refused = 0;      // for want of room
};

class HttpServer {
 public:
  virtual ~HttpServer() = default;  // closes every connection

  // `handler` must outlive the server. INVALID_ARGUMENT for an address that is none, UNAVAILABLE where it cannot be
  // listened on.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options, HttpHandler& handler);

  virtual uint16_t port() const = 0;
  virtual size_t connections() const = 0;
  virtual HttpConnectionCounts counts() const = 0;

  // Begins to close the connection that has waited for a request longest, for others that need its descriptor. False
  // where no room is to come: every connection has a request under way.
  virtual bool MakeRoom() = 0;

  // Accepts nothing more, closes idle connections, lets requests under way finish until `timeout` has passed, and
  // closes the rest.
  virtual void Drain(absl::Duration timeout) = 0;
};

}  // namespace tessera::server
