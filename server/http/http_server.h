// HttpServer is an HTTP/1.1 listener: connections, framing, limits and timeouts. Its handler interprets requests.
//
// All resources are bounded: connections and their descriptors, bytes of headers and bodies, bytes received for one
// body, bytes of large bodies and of files being sent of all connections together, and the time of every phase. If
// there is no room for a new connection, the one that has waited for a request longest is closed; if all have running
// requests, the new one is closed. Owns its threads; a handler and a reply may be used from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/http/body_budget.h"
#include "server/http/http_message.h"
#include "server/http/tls_certificates.h"

namespace tessera::server {

struct HttpLimits {
  size_t connections = 1024;
  // Returns the highest descriptor that a connection may keep, called for each new one; higher numbers are kept for
  // other files of the process. Null: no bound.
  std::function<int()> highest_descriptor;
  size_t header_bytes = 16 << 10;
  size_t body_bytes = 1 << 20;  // of any request; the handler may allow more (HttpHandler::MostBodyBytes)
  // Memory of all connections together for bodies above body_bytes, which no single one may exceed. A body waits for
  // its room unread, at most body_time, and is then refused with 503.
  size_t receiving_bytes = 512 << 20;
  // Bytes a second that a client must send of such a body, on average over each body_time.
  size_t body_rate = 64 << 10;
  // A stream whose client does not read is closed when this many bytes are pending.
  size_t pending_bytes = 256 << 20;
  // Memory of all connections together for bodies that are read while they are sent.
  size_t sending_bytes = 4 << 20;
  absl::Duration header_time = absl::Seconds(10);  // TLS handshake; first to last byte of the header
  absl::Duration body_time = absl::Seconds(30);    // the whole body, unless it is above body_bytes
  absl::Duration idle_time = absl::Seconds(75);    // between two requests
  absl::Duration write_time = absl::Seconds(30);   // without progress of the client
};

struct HttpServerOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;  // 0: any free port
  HttpLimits limits;
  std::shared_ptr<TlsCertificates> tls;  // null: plain HTTP
  // Called on any thread if no allowed descriptor is free for a connection; must not block. May be null.
  std::function<void()> no_descriptor;
  // 0: two, or one on machines with at most two processors. There, two threads would wake each other with every event,
  // which slows the steps of small models.
  int connection_threads = 0;
  int handler_threads = 8;
};

// Counts of one listener since it began.
struct HttpConnectionCounts {
  size_t open = 0;
  uint64_t accepted = 0;
  uint64_t closed_idle = 0;  // to make room for another
  uint64_t refused = 0;      // for lack of room
  BodyBudgetUse bodies;      // above HttpLimits::body_bytes
};

class HttpServer {
 public:
  virtual ~HttpServer() = default;  // closes every connection

  // `handler` must outlive the server. INVALID_ARGUMENT for an invalid address, UNAVAILABLE if it cannot be listened
  // on.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options, HttpHandler& handler);

  virtual uint16_t port() const = 0;
  virtual size_t connections() const = 0;
  virtual HttpConnectionCounts counts() const = 0;

  // Begins to close the connection that has waited for a request longest, to free its descriptor. Returns false if no
  // descriptor will become free, because every connection has a running request.
  virtual bool MakeRoom() = 0;

  // Stops accepting, closes idle connections, lets running requests finish until `timeout` has passed, and closes the
  // rest.
  virtual void Drain(absl::Duration timeout) = 0;
};

}  // namespace tessera::server
