// MessageStream sends and receives messages over a connected socket. A message is its length, 8 bytes little-endian,
// followed by its bytes. Both ends of the control channel use it. It has no thread, and a message wakes only its
// reader. On two processors, gRPC's pollers took more time from a small model's steps than the rest of their commands
// did (docs/architecture.md).
#pragma once

#include <cstddef>
#include <mutex>
#include <string>

#include "absl/time/time.h"
#include "base/files/file_descriptor.h"

namespace tessera::control {

class MessageStream {
 public:
  enum class Event {
    kMessage,
    kEnd,     // the peer closed its side, perhaps within a message, or End was called; final
    kBroken,  // a length above `most_bytes`; final
    kTimeout,
  };

  // `socket` is blocking. `most_bytes` bounds the length of a message that is read; a longer one breaks the stream.
  MessageStream(base::FileDescriptor socket, size_t most_bytes);

  // Waits for the next message. Used by one thread.
  Event Read(std::string& message, absl::Duration timeout = absl::InfiniteDuration());

  // Returns true when the system has taken the whole message; the peer then receives it even if this process dies.
  // Returns false if the message will not be read. Thread-safe.
  bool Write(const std::string& message);

  // Whether the peer has closed its side; there may still be messages to read. Thread-safe.
  bool PeerHasEnded() const;

  // Ends every wait, here and at the peer, which still receives what was written before. Thread-safe.
  void End();

 private:
  Event Receive(absl::Duration deadline);
  Event Break();

  const base::FileDescriptor socket_;
  const size_t most_bytes_;
  // Used only by the reading thread.
  std::string unread_;
  bool broken_ = false;

  std::mutex write_mutex_;
};

}  // namespace tessera::control
