#include "server/grpc/listener_check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/steady_time.h"

namespace tessera {
namespace {

constexpr int kSliceMilliseconds = 100;

struct Endpoint {
  sockaddr_storage address = {};
  socklen_t length = 0;  // 0: the text is no address
};

Endpoint EndpointOf(const std::string& text, uint16_t port) {
  Endpoint endpoint;
  auto& v4 = reinterpret_cast<sockaddr_in&>(endpoint.address);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(endpoint.address);
  const std::string name = text == "localhost" || text == "0.0.0.0" ? "127.0.0.1" : text == "::" ? "::1" : text;
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

}  // namespace

ListenerState AskListener(const std::string& address, uint16_t port, absl::Duration patience,
                          absl::FunctionRef<bool()> given_up) {
  const Endpoint endpoint = EndpointOf(address, port);
  if (endpoint.length == 0) return ListenerState::kUnknown;
  const int connection = socket(endpoint.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (connection < 0) return ListenerState::kUnknown;
  ListenerState state = ListenerState::kSilent;
  const int connected = connect(connection, reinterpret_cast<const sockaddr*>(&endpoint.address), endpoint.length);
  if (connected == 0 || errno == EINPROGRESS) {
    const absl::Duration end = SteadyNow() + patience;
    pollfd asked = {.fd = connection, .events = POLLIN, .revents = 0};
    while (state == ListenerState::kSilent && SteadyNow() < end) {
      if (given_up()) {
        state = ListenerState::kUnknown;
      } else if (poll(&asked, 1, kSliceMilliseconds) > 0) {
        char first = 0;
        if (recv(connection, &first, 1, 0) == 1) state = ListenerState::kAccepts;
        break;
      }
    }
  }
  close(connection);
  return state;
}

}  // namespace tessera
