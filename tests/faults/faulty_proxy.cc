#include "tests/faults/faulty_proxy.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace tessera {
namespace {

constexpr int kPollMilliseconds = 10;

sockaddr_in AddressOf(const std::string& address, uint16_t port) {
  sockaddr_in made = {.sin_family = AF_INET, .sin_port = htons(port)};
  inet_pton(AF_INET, address.c_str(), &made.sin_addr);
  return made;
}

bool Readable(int socket) {
  pollfd event = {socket, POLLIN, 0};
  return poll(&event, 1, kPollMilliseconds) > 0;
}

}  // namespace

FaultyProxy::FaultyProxy(const std::string& address, uint16_t port) : target_(port) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in own = AddressOf(address, 0);
  socklen_t size = sizeof(own);
  EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&own), size), 0);
  EXPECT_EQ(listen(listener_, SOMAXCONN), 0);
  EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&own), &size), 0);
  port_ = ntohs(own.sin_port);
  accepting_ = std::thread([this] { Accept(); });
}

FaultyProxy::~FaultyProxy() {
  ending_ = true;
  Cut();
  accepting_.join();
  Cut();
  for (std::thread& thread : threads_) thread.join();
  close(listener_);
}

void FaultyProxy::Cut() {
  const std::lock_guard lock(mutex_);
  for (const int socket : sockets_) shutdown(socket, SHUT_RDWR);
}

void FaultyProxy::Accept() {
  while (!ending_) {
    if (!Readable(listener_)) continue;
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    const std::lock_guard lock(mutex_);
    threads_.emplace_back([this, client] { Serve(client); });
  }
}

void FaultyProxy::Serve(int client) {
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in target = AddressOf("127.0.0.1", target_);
  if (connect(server, reinterpret_cast<const sockaddr*>(&target), sizeof(target)) == 0) {
    {
      const std::lock_guard lock(mutex_);
      sockets_.insert({client, server});
    }
    std::thread back([&] { Pump(server, client); });
    Pump(client, server);
    back.join();
    const std::lock_guard lock(mutex_);
    sockets_.erase(client);
    sockets_.erase(server);
  }
  close(client);
  close(server);
}

void FaultyProxy::Pump(int from, int to) {
  char bytes[16384];
  while (!ending_) {
    if (stalled_) {
      poll(nullptr, 0, kPollMilliseconds);
      continue;
    }
    if (!Readable(from)) continue;
    const ssize_t got = recv(from, bytes, sizeof(bytes), 0);
    if (got <= 0) break;
    if (const auto delay = delay_.load(); delay.count() > 0) poll(nullptr, 0, static_cast<int>(delay.count()));
    if (send(to, bytes, static_cast<size_t>(got), MSG_NOSIGNAL) != got) break;
  }
  shutdown(from, SHUT_RDWR);
  shutdown(to, SHUT_RDWR);
}

}  // namespace tessera
