// Accepts connections for a server that takes them as descriptors, as gRPC does. gRPC 1.51 itself has no bound on the
// descriptors that its connections take, and never accepts again after it has met a lack of them once.
//
// Owns its thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace tessera::server {

struct AcceptorOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  // Asked for each new connection, which needs room where its number is higher. Null: none is.
  std::function<int()> highest_descriptor;
  // Called where a connection finds no descriptor that it may keep, on the acceptor's thread. May be null.
  std::function<void()> no_descriptor;
  // Begins to close what can be spared elsewhere; false where that is nothing. May be null.
  std::function<bool()> make_room;
};

class ConnectionAcceptor {
 public:
  // Connections wait until Start. UNAVAILABLE where it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Listen(const AcceptorOptions& options);
  ~ConnectionAcceptor();  // accepts nothing more

  ConnectionAcceptor(const ConnectionAcceptor&) = delete;
  ConnectionAcceptor& operator=(const ConnectionAcceptor&) = delete;

  // Hands each connection to `take`, on the acceptor's thread; it owns the descriptor. Once.
  void Start(std::function<void(int descriptor)> take);

  uint16_t port() const { return port_; }
  uint64_t accepted() const { return accepted_; }
  uint64_t refused() const { return refused_; }  // for want of descriptors

 private:
  ConnectionAcceptor(const AcceptorOptions& options, int listener, int wake, uint16_t port)
      : options_(options), listener_(listener), wake_(wake), port_(port) {}
  void Run();
  // The connection under a number that it may keep; -1 where there is none, and it is closed then.
  int WithinBound(int connection) const;

  const AcceptorOptions options_;
  const int listener_;
  const int wake_;  // readable: the acceptor ends
  const uint16_t port_;
  std::function<void(int)> take_;
  std::atomic<uint64_t> accepted_ = 0, refused_ = 0;
  std::thread thread_;
};

}  // namespace tessera::server
