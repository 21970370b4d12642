#include "tests/support/scripted_web_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tessera {
namespace {

constexpr int kPollMilliseconds = 20;  // how soon the end of the server is noticed

class Connection final : public ScriptedWebServer::Peer {
 public:
  Connection(int descriptor, SSL_CTX* tls, const std::atomic<bool>& is_stopping)
      : descriptor_(descriptor), is_stopping_(is_stopping) {
    if (tls == nullptr) return;
    tls_ = SSL_new(tls);
    SSL_set_fd(tls_, descriptor);
  }
  ~Connection() override {
    SSL_free(tls_);
    close(descriptor_);
  }

  bool Handshake() { return tls_ == nullptr || (Wait() && SSL_accept(tls_) == 1); }

  bool Send(const std::string& bytes) override {
    for (size_t sent = 0; sent < bytes.size();) {
      const int most = static_cast<int>(bytes.size() - sent);
      const ssize_t count = tls_ != nullptr ? SSL_write(tls_, bytes.data() + sent, most)
                                            : send(descriptor_, bytes.data() + sent, most, MSG_NOSIGNAL);
      if (count <= 0) return false;
      sent += static_cast<size_t>(count);
    }
    return true;
  }

  void WaitUntilClosed() override {
    for (std::string ignored; Receive(ignored);) {
    }
  }

  // Appends what has arrived; false at the end of the connection or of the server.
  bool Receive(std::string& input) {
    char buffer[16384];
    if ((tls_ == nullptr || SSL_pending(tls_) == 0) && !Wait()) return false;
    const ssize_t count =
        tls_ != nullptr ? SSL_read(tls_, buffer, sizeof(buffer)) : recv(descriptor_, buffer, sizeof(buffer), 0);
    if (count <= 0) return false;
    input.append(buffer, static_cast<size_t>(count));
    return true;
  }

 private:
  bool Wait() {
    while (!is_stopping_) {
      pollfd waiting = {.fd = descriptor_, .events = POLLIN, .revents = 0};
      if (poll(&waiting, 1, kPollMilliseconds) > 0) return true;
    }
    return false;
  }

  const int descriptor_;
  const std::atomic<bool>& is_stopping_;
  SSL* tls_ = nullptr;
};

// The number after "Content-Length: ", as libcurl writes it; 0 without.
size_t BodyBytes(const std::string& head) {
  constexpr absl::string_view kName = "Content-Length: ";
  const size_t at = head.find(kName.data());
  if (at == std::string::npos) return 0;
  const absl::string_view rest = absl::string_view(head).substr(at + kName.size());
  size_t bytes = 0;
  return absl::SimpleAtoi(rest.substr(0, rest.find('\r')), &bytes) ? bytes : 0;
}

}  // namespace

ScriptedWebServer::ScriptedWebServer(Script script, const std::string& certificate, const std::string& key)
    : script_(std::move(script)) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to connections that the client has closed
  if (!certificate.empty()) {
    SSL_CTX* tls = SSL_CTX_new(TLS_server_method());
    EXPECT_EQ(SSL_CTX_use_certificate_chain_file(tls, certificate.c_str()), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey_file(tls, key.c_str(), SSL_FILETYPE_PEM), 1);
    tls_ = tls;
  }
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  listen(listener_, 64);
  socklen_t size = sizeof(address);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  accepting_ = std::thread([this] { Accept(); });
}

ScriptedWebServer::~ScriptedWebServer() {
  is_stopping_ = true;
  accepting_.join();
  for (std::thread& thread : serving_) thread.join();
  close(listener_);
  SSL_CTX_free(static_cast<SSL_CTX*>(tls_));
}

std::vector<ScriptedWebServer::Request> ScriptedWebServer::Requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void ScriptedWebServer::Accept() {
  while (!is_stopping_) {
    pollfd waiting = {.fd = listener_, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, kPollMilliseconds) <= 0) continue;
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    ++connections_;
    serving_.emplace_back([this, connection] { Serve(connection); });
  }
}

void ScriptedWebServer::Serve(int descriptor) {
  Connection connection(descriptor, static_cast<SSL_CTX*>(tls_), is_stopping_);
  if (!connection.Handshake()) return;
  std::string input;
  while (connection.Receive(input)) {
    const size_t end = input.find("\r\n\r\n");
    if (end == std::string::npos || input.size() < end + 4 + BodyBytes(input.substr(0, end))) continue;
    const Request request = {.head = input.substr(0, end), .body = input.substr(end + 4)};
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    return script_(request, connection);
  }
}

ScriptedWebServer::Script Sending(std::string bytes) {
  return [bytes = std::move(bytes)](const ScriptedWebServer::Request&, ScriptedWebServer::Peer& peer) {
    peer.Send(bytes);
  };
}

std::string OkAnswer(const std::string& body) {
  return absl::StrCat("HTTP/1.1 200 OK\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
}

}  // namespace tessera
