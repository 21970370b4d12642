// HttpSpanTransport posts messages over HTTP or HTTPS, with libcurl. It honours HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE
// and SSL_CERT_DIR, follows no redirect, and logs nothing. Post must be called by one thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/otlp/span_transport.h"

namespace tessera::server {

class HttpSpanTransport final : public SpanTransport {
 public:
  // Returns the header lines of the next request, "Name: value", in addition to those of the protocol.
  using Headers = std::function<absl::StatusOr<std::vector<std::string>>()>;

  // `url` is complete, http or https. Throws nothing; errors of libcurl are those of every Post.
  HttpSpanTransport(std::string url, Headers headers);
  ~HttpSpanTransport() override;

  HttpSpanTransport(const HttpSpanTransport&) = delete;
  HttpSpanTransport& operator=(const HttpSpanTransport&) = delete;

  SpanReply Post(const std::string& message, absl::Duration timeout) override;
  void HurryUntil(absl::Duration deadline) override;

 private:
  struct Exchange;

  static size_t OnHeader(char* data, size_t size, size_t count, void* exchange);
  static size_t OnBody(char* data, size_t size, size_t count, void* exchange);
  void Prepare(Exchange& exchange, const std::string& message, const std::vector<std::string>& headers) const;
  SpanReply Wait(Exchange& exchange, absl::Duration deadline);

  const std::string url_;
  const Headers headers_;
  void* multi_;                             // CURLM, which keeps the connection
  std::atomic<int64_t> hurry_nanoseconds_;  // the deadline of HurryUntil
};

}  // namespace tessera::server
