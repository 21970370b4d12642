// MessageStream sends and receives messages over a connected socket: each is its length, 8 bytes little-endian, and
// then its bytes. Both ends of the control channel use it. It has no thread, and a message wakes only its reader:
// gRPC's pollers took more of two processors from a small model's steps than the rest of their commands
// (docs/architecture.md).
#pragma once

#include <cstddef>
#include <mutex>
#include <string>

#include "absl/time/time.h"
#include "base/file_descriptor.h"

namespace tessera::control {

class MessageStream {
 public:
  enum class Event {
    kMessage,
    kEnd,     // the peer's, also within a message, or End; nothing comes any more
    kBroken,  // a length beyond `most_bytes`; nothing comes any more
    kTimeout,
  };

  // `socket`: blocks. `most_bytes`: of one message that is read; a longer one breaks the stream.
  MessageStream(base::FileDescriptor socket, size_t most_bytes);

  // Waits for the next message. Used by one thread.
  Event Read(std::string& message, absl::Duration timeout = absl::InfiniteDuration());

  // Returns when the system has the whole message, which the peer gets even if this process dies then; false when it
  // will not be read. Thread-safe.
  bool Write(const std::string& message);

  // Whether the peer has ended its side, though there may be something left to read. Thread-safe.
  bool PeerHasEnded() const;

  // Ends every wait, here and at the peer, who gets what was written before. Thread-safe.
  void End();

 private:
  Event Receive(absl::Duration deadline);
  Event Break();

  const base::FileDescriptor socket_;
  const size_t most_bytes_;
  // Of the thread that reads.
  std::string unread_;
  bool broken_ = false;

  std::mutex write_mutex_;
};

}  // namespace tessera::control
