// HttpClient makes several HTTP requests at once, with libcurl. It honours HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE and
// SSL_CERT_DIR, follows no redirect by itself, and logs nothing. Used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera::client {

struct HttpHead {
  int status = 0;
  std::map<std::string, std::string> fields;  // names in small letters

  std::string Field(const std::string& name) const;  // empty if there is none
};

struct HttpRequest {
  std::string url;
  std::string token;  // sent as "Authorization: Bearer TOKEN"; empty: none
  bool head_only = false;
  struct Range {
    uint64_t first = 0, last = 0;  // inclusive
  };
  std::optional<Range> range;
  // Called once before the first byte of the body, and for each part of it. An error ends the request.
  std::function<absl::Status(const HttpHead&)> on_head;
  std::function<absl::Status(std::string_view)> on_body;
};

struct HttpResult {
  HttpHead head;
  // UNAVAILABLE if the connection failed, was cut or stalled, which may pass; FAILED_PRECONDITION if its certificate is
  // not trusted; else the error of on_head or on_body. OK for every complete answer, whatever its status.
  absl::Status status;
};

class HttpClient {
 public:
  // A connection on which nothing arrives for `stall` is given up.
  static absl::StatusOr<std::unique_ptr<HttpClient>> Create(absl::Duration stall);
  ~HttpClient();

  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // `done` is called from Run, once, unless the client is destroyed first. It may start requests.
  void Start(HttpRequest request, std::function<void(const HttpResult&)> done);

  // Works on the requests until something has happened or `at_most` has passed.
  absl::Status Run(absl::Duration at_most);

  void CancelAll();  // ends all requests without a call of `done`

  size_t active() const { return transfers_.size(); }

 private:
  struct Transfer;

  HttpClient(void* multi, absl::Duration stall);

  static size_t OnHeader(char* data, size_t size, size_t count, void* transfer);
  static size_t OnBody(char* data, size_t size, size_t count, void* transfer);
  absl::Status StatusOf(const Transfer& transfer, int code) const;

  void* multi_;  // CURLM
  const absl::Duration stall_;
  std::map<void*, std::unique_ptr<Transfer>> transfers_;  // by their CURL
};

}  // namespace tessera::client
