// BytePump moves bytes between a socket and a party that uses another transport: the control channel of a rank on
// another host. A thread reads and writes the socket.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "base/files/file_descriptor.h"

namespace tessera::server {

class BytePump {
 public:
  struct Events {
    // Called with bytes that the socket's other end has written. May wait: nothing more is read meanwhile.
    std::function<void(std::string bytes)> read;
    std::function<void()> closed;  // called once, when the other end has closed or takes no more data
  };

  // `socket` must be connected; the pump owns it. The pump's thread calls the events.
  BytePump(int socket, Events events);
  ~BytePump();  // closes the socket

  BytePump(const BytePump&) = delete;
  BytePump& operator=(const BytePump&) = delete;

  // Sends bytes to the socket's other end without waiting. Closes the connection if too many bytes are queued.
  // Thread-safe.
  void Push(std::string bytes);
  // Closes the connection after all pushed bytes are written. Thread-safe.
  void Finish();

 private:
  void Run();
  bool WriteSome();

  const base::FileDescriptor socket_;
  const base::FileDescriptor wake_;
  const Events events_;
  std::mutex mutex_;
  std::deque<std::string> queue_;  // guarded by mutex_
  size_t queued_ = 0;              // bytes; guarded by mutex_
  size_t written_ = 0;             // bytes of the first element; used by the thread
  bool overflown_ = false;         // guarded by mutex_
  bool finishing_ = false;         // guarded by mutex_
  bool ending_ = false;            // guarded by mutex_
  std::thread thread_;
};

}  // namespace tessera::server
