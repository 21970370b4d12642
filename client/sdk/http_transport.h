// The calls of a client over HTTP/1.1: one connection for each, with a bound on every wait and every size.
//
// Errors: UNAVAILABLE, the server cannot be reached, stopped answering, or says that it cannot do it now (WasLost: the
// request may have arrived); CANCELLED and DEADLINE_EXCEEDED, as HttpCall asks for; others are the server's own, with
// what RefusalOf reads. Thread-safe.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/sdk/event_stream.h"
#include "client/sdk/server_url.h"
#include "tessera/image_client.h"

namespace tessera::client {

struct HttpCall {
  std::string method = "GET";
  std::string target;
  std::string body;             // JSON; empty: none
  std::string idempotency_key;  // empty: none
  absl::Duration deadline;      // of the steady clock
  std::stop_token stop;
};

struct HttpAnswer {
  std::string media_type;
  std::string body;
};

class HttpTransport {
 public:
  // INVALID_ARGUMENT for certificates that cannot be read. Connects to nothing.
  static absl::StatusOr<std::unique_ptr<HttpTransport>> Create(const ServerUrl& url, const ImageClientOptions& options);

  absl::StatusOr<HttpAnswer> Call(const HttpCall& call) const;

  // Passes the events of a stream on until `take` returns false, or until the stream ends.
  absl::Status Follow(const HttpCall& call, absl::FunctionRef<bool(const ServerEvent&)> take) const;

 private:
  HttpTransport(const ServerUrl& url, const std::string& api_key) : url_(url), api_key_(api_key) {}

  const ServerUrl url_;
  const std::string api_key_;
  // Connections share it, which OpenSSL allows.
  mutable boost::asio::ssl::context tls_{boost::asio::ssl::context::tls_client};
};

// A request was sent, or may have been, and its answer did not come.
bool WasLost(const absl::Status& status);

// `text` as one segment of a path, or as a value of a query.
std::string PercentEncoded(const std::string& text);

}  // namespace tessera::client
