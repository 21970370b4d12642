// A client for tests that sends any bytes and reads what comes, with a deadline on every wait.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/http/http_message.h"

namespace tessera {

struct TestResponse {
  int status = 0;  // 0: the connection ended before a whole response
  std::vector<server::HttpHeader> headers;
  std::string body;  // chunks joined

  std::string Header(const std::string& name) const;  // empty: none
};

class HttpTestClient {
 public:
  // Connects to this machine.
  explicit HttpTestClient(uint16_t port, absl::Duration timeout = absl::Seconds(30));
  ~HttpTestClient();

  HttpTestClient(const HttpTestClient&) = delete;
  HttpTestClient& operator=(const HttpTestClient&) = delete;

  // False once the server has closed the connection.
  bool Send(const std::string& bytes);
  TestResponse ReadResponse(bool has_body = true);

  // Bytes as they come, until `text` is among those read since the last call or the connection ends; all of these.
  std::string ReadUntil(const std::string& text);
  // Reads and drops everything; true when the server ends the connection, false when the timeout passes first.
  bool WaitForEnd();

  void Close();
  void ShutDownSending();

  // One request with its Host header and, for a body, its length; and the response.
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
