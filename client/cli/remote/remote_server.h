// A Tessera server over HTTP, as a client sees it: one request a connection, with a bound on every wait and every size.
// Used by one thread, but for Interrupt.
//
// UNAVAILABLE: the server cannot be reached, stopped answering, or says that it cannot do it now. CANCELLED: after
// Interrupt. Other errors are the server's own, with its message made safe to print.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/remote/event_stream.h"

namespace tessera {

struct RemoteServerOptions {
  std::string url;
  std::string api_key_file;                      // empty: no key
  std::string ca_file;                           // PEM; empty: the certificate authorities that the system trusts
  absl::Duration patience = absl::Seconds(120);  // with a server from which nothing comes
};

class RemoteServer {
 public:
  // Of a connection that is lost: how often in a row it is made again, and how long it takes between.
  static constexpr int kMostReconnections = 5;
  static constexpr absl::Duration kReconnectPause = absl::Seconds(1);

  // INVALID_ARGUMENT for a URL or a file that is not legal. Connects to nothing yet.
  static absl::StatusOr<std::unique_ptr<RemoteServer>> Create(const RemoteServerOptions& options);

  virtual ~RemoteServer() = default;

  // The body of the answer to a request without one.
  virtual absl::StatusOr<std::string> Call(const std::string& method, const std::string& target) = 0;

  // POSTs `body` and returns the body of the answer. Where that is lost the request is sent again under the same
  // idempotency key, which is legal as CheckIdempotencyKey says, so that it is carried out once.
  virtual absl::StatusOr<std::string> Submit(const std::string& target, const std::string& body,
                                             const std::string& idempotency_key) = 0;

  // Hands on the events of a stream until `take` returns false. UNAVAILABLE where it ends before.
  virtual absl::Status Follow(const std::string& target, absl::FunctionRef<bool(const ServerEvent&)> take) = 0;

  // Waits, or returns CANCELLED sooner.
  virtual absl::Status Pause(absl::Duration time) = 0;

  // From any thread: what is under way and what comes after it ends with CANCELLED.
  virtual void Interrupt() = 0;

  // The key would travel where others can read it.
  virtual bool SendsKeyInClear() const = 0;
};

// Text of a server without what a terminal would obey, and not endless.
std::string PrintableText(const std::string& text);

// Whether `id` may stand in a path as it is.
absl::Status CheckJobId(const std::string& id);

}  // namespace tessera
