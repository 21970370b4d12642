#include "server/grpc/connection_acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/threads/start_thread.h"

namespace tessera::server {
namespace {

constexpr int kRetryMilliseconds = 100;  // after running out of descriptors
// Waiting times for connections that were asked to close. Other threads accept meanwhile and may take the descriptors,
// so more are closed.
constexpr int kRoomTries = 100;
constexpr int kTriesForOne = 4;
constexpr int kRoomMilliseconds = 5;

struct Endpoint {
  sockaddr_storage address = {};
  socklen_t length = 0;  // 0: the text is not an address
};

Endpoint EndpointOf(const std::string& text, uint16_t port) {
  Endpoint endpoint;
  auto& v4 = reinterpret_cast<sockaddr_in&>(endpoint.address);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(endpoint.address);
  const std::string name = text == "localhost" ? "127.0.0.1" : text;
  if (inet_pton(AF_INET, name.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    endpoint.length = sizeof(v4);
  } else if (inet_pton(AF_INET6, name.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    endpoint.length = sizeof(v6);
  }
  return endpoint;
}

uint16_t PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Listen(const AcceptorOptions& options) {
  const Endpoint wanted = EndpointOf(options.address, options.port);
  if (wanted.length == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", options.address, "' is not an IP address, such as 127.0.0.1 or ::1"));
  }
  const int listener = socket(wanted.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const int on = 1;
  Endpoint bound = {.length = sizeof(sockaddr_storage)};
  const bool listens = listener >= 0 && wake >= 0 &&
                       setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
                       bind(listener, reinterpret_cast<const sockaddr*>(&wanted.address), wanted.length) == 0 &&
                       listen(listener, SOMAXCONN) == 0 &&
                       getsockname(listener, reinterpret_cast<sockaddr*>(&bound.address), &bound.length) == 0;
  if (!listens) {
    const int error = errno;
    if (listener >= 0) close(listener);
    if (wake >= 0) close(wake);
    return absl::UnavailableError(
        absl::StrCat("cannot listen for gRPC on ", options.address, ":", options.port, ": ", std::strerror(error)));
  }
  return std::unique_ptr<ConnectionAcceptor>(new ConnectionAcceptor(options, listener, wake, PortOf(bound.address)));
}

ConnectionAcceptor::~ConnectionAcceptor() {
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  close(listener_);
  close(wake_);
}

void ConnectionAcceptor::Start(std::function<void(int descriptor)> take) {
  take_ = std::move(take);
  thread_ = base::StartThread([this] { Run(); });
}

int ConnectionAcceptor::WithinBound(int connection) const {
  if (!options_.highest_descriptor || connection <= options_.highest_descriptor()) return connection;
  if (options_.no_descriptor) options_.no_descriptor();
  for (int i = 0; i < kRoomTries && options_.make_room; ++i) {
    if (i % kTriesForOne == 0 && !options_.make_room() && i == 0) break;
    const int lowest = fcntl(connection, F_DUPFD_CLOEXEC, 0);
    if (lowest >= 0 && lowest <= options_.highest_descriptor()) {
      close(connection);
      return lowest;
    }
    if (lowest >= 0) close(lowest);
    pollfd ending = {.fd = wake_, .events = POLLIN, .revents = 0};
    if (poll(&ending, 1, kRoomMilliseconds) > 0) break;
  }
  close(connection);
  return -1;
}

void ConnectionAcceptor::Run() {
  while (true) {
    pollfd waiting[] = {{.fd = wake_, .events = POLLIN, .revents = 0},
                        {.fd = listener_, .events = POLLIN, .revents = 0}};
    if (poll(waiting, 2, -1) < 0 && errno != EINTR) return;
    if (waiting[0].revents != 0) return;
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection < 0) {
      // Waiting connections stay in the kernel's queue.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        if (options_.no_descriptor) options_.no_descriptor();
        if (poll(waiting, 1, kRetryMilliseconds) > 0) return;
      }
      continue;
    }
    const int kept = WithinBound(connection);
    if (kept < 0) {
      ++refused_;
      continue;
    }
    const int on = 1;
    setsockopt(kept, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ++accepted_;
    take_(kept);
  }
}

}  // namespace tessera::server
