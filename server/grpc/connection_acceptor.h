// ConnectionAcceptor accepts connections for a server that takes them as descriptors, as gRPC does. gRPC 1.51 has no
// bound for the descriptors of its connections, and stops accepting for good after it has once run out of descriptors.
//
// Owns a thread.
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
  uint16_t port = 0;  // 0: any free port
  // Returns the highest descriptor that a connection may keep, called for each new one; a higher one needs make_room.
  // Null: no bound.
  std::function<int()> highest_descriptor;
  // Called on the acceptor's thread if no allowed descriptor is free for a connection. May be null.
  std::function<void()> no_descriptor;
  // Begins to close connections elsewhere that can be spared; returns false if there are none. May be null.
  std::function<bool()> make_room;
};

class ConnectionAcceptor {
 public:
  // Connections wait until Start. UNAVAILABLE if the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Listen(const AcceptorOptions& options);
  ~ConnectionAcceptor();  // stops accepting

  ConnectionAcceptor(const ConnectionAcceptor&) = delete;
  ConnectionAcceptor& operator=(const ConnectionAcceptor&) = delete;

  // Passes each connection to `take`, which owns the descriptor, on the acceptor's thread. Called once.
  void Start(std::function<void(int descriptor)> take);

  uint16_t port() const { return port_; }
  uint64_t accepted() const { return accepted_; }
  uint64_t refused() const { return refused_; }  // connections refused for lack of descriptors

 private:
  ConnectionAcceptor(const AcceptorOptions& options, int listener, int wake, uint16_t port)
      : options_(options), listener_(listener), wake_(wake), port_(port) {}
  void Run();
  // Moves the connection to an allowed descriptor; closes it and returns -1 if none gets free.
  int WithinBound(int connection) const;

  const AcceptorOptions options_;
  const int listener_;
  const int wake_;  // readable when the acceptor ends
  const uint16_t port_;
  std::function<void(int)> take_;
  std::atomic<uint64_t> accepted_ = 0, refused_ = 0;
  std::thread thread_;
};

}  // namespace tessera::server
