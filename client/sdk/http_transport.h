// HttpTransport performs a client's calls over HTTP/1.1: one connection for each, with every wait and every size
// bounded.
//
// Errors: UNAVAILABLE if the server cannot be reached, stopped responding, or reports that it is unavailable (if
// WasLost, the request may have arrived); CANCELLED and DEADLINE_EXCEEDED as HttpCall requests; other errors are the
// server's, with the details that RefusalOf reads. Thread-safe.
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
  std::string body;                             // empty: none
  std::string media_type = "application/json";  // of the body
  std::string idempotency_key;                  // empty: none
  absl::Duration deadline;                      // on the steady clock
  std::stop_token stop;
};

struct HttpAnswer {
  std::string media_type;
  std::string body;
};

class HttpTransport {
 public:
  // INVALID_ARGUMENT for unreadable certificates. Does not connect.
  static absl::StatusOr<std::unique_ptr<HttpTransport>> Create(const ServerUrl& url, const ImageClientOptions& options);

  absl::StatusOr<HttpAnswer> Call(const HttpCall& call) const;

  // Passes the events of a stream to `take` until it returns false or the stream ends.
  absl::Status Follow(const HttpCall& call, absl::FunctionRef<bool(const ServerEvent&)> take) const;

 private:
  HttpTransport(const ServerUrl& url, const std::string& api_key) : url_(url), api_key_(api_key) {}

  const ServerUrl url_;
  const std::string api_key_;
  // Shared by all connections, which OpenSSL allows.
  mutable boost::asio::ssl::context tls_{boost::asio::ssl::context::tls_client};
};

// True if a request was or may have been sent and no response arrived.
bool WasLost(const absl::Status& status);

// Encodes `text` as one segment of a path or as a value in a query.
std::string PercentEncoded(const std::string& text);

}  // namespace tessera::client
