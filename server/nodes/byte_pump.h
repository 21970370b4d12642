// Moves bytes between a socket and somebody who sends and receives them otherwise: a rank's control channel, whose
// other end is on another host. A thread of its own reads and writes the socket.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "base/file_descriptor.h"

namespace tessera::server {

class BytePump {
 public:
  struct Events {
    // What the socket's other end has written. May wait: nothing more is read meanwhile.
    std::function<void(std::string bytes)> read;
    std::function<void()> closed;  // once, when the other end has gone, or takes nothing any more
  };

  // `socket` is connected, and owned by the pump from here on. Events are called by its thread.
  BytePump(int socket, Events events);
  ~BytePump();  // closes the socket

  BytePump(const BytePump&) = delete;
  BytePump& operator=(const BytePump&) = delete;

  // Sends them to the socket's other end, without waiting. One that lets too many pile up is closed. Thread-safe.
  void Push(std::string bytes);
  // Closes the connection once all that was pushed is written. Thread-safe.
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
  size_t written_ = 0;             // of the first of the queue; of the thread alone
  bool overflown_ = false;         // guarded by mutex_
  bool finishing_ = false;         // guarded by mutex_
  bool ending_ = false;            // guarded by mutex_
  std::thread thread_;
};

}  // namespace tessera::server
