// HttpTestClient is an HTTP client for tests. It can send arbitrary bytes, and every wait has a deadline.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/http/http_message.h"

namespace tessera {

struct TestResponse {
  int status = 0;  // 0: the connection ended before a complete response
  std::vector<server::HttpHeader> headers;
  std::string body;  // chunks joined

  std::string Header(const std::string& name) const;  // empty if absent
};

class HttpTestClient {
 public:
  // Connects to this machine.
  explicit HttpTestClient(uint16_t port, absl::Duration timeout = absl::Minutes(1));
  ~HttpTestClient();

  HttpTestClient(const HttpTestClient&) = delete;
  HttpTestClient& operator=(const HttpTestClient&) = delete;

  // Returns false if the server has closed the connection.
  bool Send(const std::string& bytes);
  TestResponse ReadResponse(bool has_body = true);

  // Reads until `text` arrives or the connection ends. Returns the bytes since the last read, up to and including
  // `text`.
  std::string ReadUntil(const std::string& text);
  // Reads and discards everything. True if the server ends the connection, false if the timeout passes first.
  bool WaitForEnd();

  void Close();
  void ShutDownSending();

  // Sends one request with a Host header and, for a body, its length. Returns the response.
  TestResponse Call(const std::string& method, const std::string& target, const std::string& body = "",
                    const std::vector<server::HttpHeader>& headers = {});

 private:
  bool Fill();
  std::optional<std::string> ReadLine();
  bool ReadBytes(size_t count, std::string& bytes);

  int socket_ = -1;
  const uint16_t port_;
  const absl::Duration timeout_;
  std::string input_;
};

}  // namespace tessera
