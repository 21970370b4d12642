#include "tests/support/http_test_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera {

std::string TestResponse::Header(const std::string& name) const {
  for (const server::HttpHeader& header : headers) {
    if (absl::EqualsIgnoreCase(header.name, name)) return header.value;
  }
  return "";
}

HttpTestClient::HttpTestClient(uint16_t port, absl::Duration timeout) : port_(port), timeout_(timeout) {
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) Close();
}

HttpTestClient::~HttpTestClient() { Close(); }

void HttpTestClient::Close() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

void HttpTestClient::ShutDownSending() { shutdown(socket_, SHUT_WR); }

bool HttpTestClient::Send(const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    pollfd waiting = {.fd = socket_, .events = POLLOUT, .revents = 0};
    if (socket_ < 0 || poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout_))) <= 0) return false;
    const ssize_t now = send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (now < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (now > 0) sent += static_cast<size_t>(now);
  }
  return true;
}

bool HttpTestClient::Fill() {
  pollfd waiting = {.fd = socket_, .events = POLLIN, .revents = 0};
  if (socket_ < 0 || poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout_))) <= 0) return false;
  char buffer[16384];
  const ssize_t read = recv(socket_, buffer, sizeof(buffer), 0);
  if (read <= 0) return false;
  input_.append(buffer, static_cast<size_t>(read));
  return true;
}

std::optional<std::string> HttpTestClient::ReadLine() {
  size_t end;
  while ((end = input_.find("\r\n")) == std::string::npos) {
    if (!Fill()) return std::nullopt;
  }
  std::string line = input_.substr(0, end);
  input_.erase(0, end + 2);
  return line;
}

bool HttpTestClient::ReadBytes(size_t count, std::string& bytes) {
  while (input_.size() < count) {
    if (!Fill()) return false;
  }
  bytes.append(input_, 0, count);
  input_.erase(0, count);
  return true;
}

TestResponse HttpTestClient::ReadResponse(bool has_body) {
  TestResponse response;
  const std::optional<std::string> status_line = ReadLine();
  int status = 0;
  if (!status_line || status_line->size() < 12 || !absl::SimpleAtoi(status_line->substr(9, 3), &status)) return {};
  while (const auto line = ReadLine()) {
    if (line->empty()) break;
    const size_t colon = line->find(':');
    if (colon == std::string::npos) return {};
    response.headers.push_back(
        {line->substr(0, colon), std::string(absl::StripAsciiWhitespace(line->substr(colon + 1)))});
  }
  response.status = status;
  if (!has_body || status == 204 || status == 304 || status == 100) return response;
  if (absl::EqualsIgnoreCase(response.Header("transfer-encoding"), "chunked")) {
    while (const auto line = ReadLine()) {
      size_t size = 0;
      std::from_chars(line->data(), line->data() + line->size(), size, 16);
      std::string rest;
      if (!ReadBytes(size, response.body) || !ReadBytes(2, rest)) return {};
      if (size == 0) return response;
    }
    return {};
  }
  size_t length = 0;
  if (!absl::SimpleAtoi(response.Header("content-length"), &length) || !ReadBytes(length, response.body)) return {};
  return response;
}

std::string HttpTestClient::ReadUntil(const std::string& text) {
  size_t found, searched = 0;
  while ((found = input_.find(text, searched)) == std::string::npos) {
    searched = input_.size() - std::min(input_.size(), text.size());
    if (!Fill()) break;
  }
  const size_t end = found == std::string::npos ? input_.size() : found + text.size();
  std::string read = input_.substr(0, end);
  input_.erase(0, end);
  return read;
}

bool HttpTestClient::WaitForEnd() {
  while (true) {
    pollfd waiting = {.fd = socket_, .events = POLLIN, .revents = 0};
    if (socket_ < 0) return true;
    if (poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout_))) <= 0) return false;
    char buffer[16384];
    if (recv(socket_, buffer, sizeof(buffer), 0) <= 0) return true;
  }
}

TestResponse HttpTestClient::Call(const std::string& method, const std::string& target, const std::string& body,
                                  const std::vector<server::HttpHeader>& headers) {
  std::string request = absl::StrCat(method, " ", target, " HTTP/1.1\r\nHost: localhost:", port_, "\r\n");
  const bool has_type = std::ranges::count(headers, "Content-Type", &server::HttpHeader::name) > 0;
  if (!body.empty() && !has_type) absl::StrAppend(&request, "Content-Type: application/json\r\n");
  if (!body.empty() || method == "POST") absl::StrAppend(&request, "Content-Length: ", body.size(), "\r\n");
  for (const server::HttpHeader& header : headers) absl::StrAppend(&request, header.name, ": ", header.value, "\r\n");
  Send(absl::StrCat(request, "\r\n", body));
  return ReadResponse(method != "HEAD");
}

}  // namespace tessera
