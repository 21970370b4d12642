#include "control/protocol/message_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/time/steady_time.h"

namespace tessera::control {
namespace {

constexpr size_t kReadBytes = 32 << 10;  // per call
constexpr size_t kKeptBytes = 1 << 20;   // of the buffer, for the next message
constexpr size_t kLengthBytes = sizeof(uint64_t);

bool SendAll(int socket, std::string_view bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) sent += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

MessageStream::MessageStream(base::FileDescriptor socket, size_t most_bytes)
    : socket_(std::move(socket)), most_bytes_(most_bytes) {}

MessageStream::Event MessageStream::Read(std::string& message, absl::Duration timeout) {
  const absl::Duration deadline = base::SteadyNow() + timeout;
  while (true) {
    if (broken_) return Event::kBroken;
    if (unread_.size() >= kLengthBytes) {
      uint64_t length;
      std::memcpy(&length, unread_.data(), kLengthBytes);
      if (length > most_bytes_) return Break();
      const size_t whole = kLengthBytes + length;
      if (unread_.size() >= whole) {
        message.assign(unread_, kLengthBytes, length);
        unread_.erase(0, whole);
        if (unread_.empty() && unread_.capacity() > kKeptBytes) unread_.shrink_to_fit();
        return Event::kMessage;
      }
    }
    // A peer that dies may leave a partial message.
    if (const Event received = Receive(deadline); received != Event::kMessage) return received;
  }
}

// Appends the socket's available bytes to `unread_`.
MessageStream::Event MessageStream::Receive(absl::Duration deadline) {
  while (deadline != absl::InfiniteDuration()) {
    pollfd readable = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
    const absl::Duration left = std::clamp(deadline - base::SteadyNow(), absl::ZeroDuration(), absl::Hours(1));
    // Rounds up, so that fractions of a millisecond are waited for too.
    const int ready =
        poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(left + absl::Nanoseconds(999'999))));
    if (ready > 0 || (ready < 0 && errno != EINTR)) break;
    if (base::SteadyNow() >= deadline) return Event::kTimeout;
  }
  const size_t before = unread_.size();
  unread_.resize(before + kReadBytes);
  ssize_t count;
  do {
    count = recv(socket_.get(), unread_.data() + before, kReadBytes, 0);
  } while (count < 0 && errno == EINTR);
  unread_.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return count > 0 ? Event::kMessage : Event::kEnd;
}

MessageStream::Event MessageStream::Break() {
  broken_ = true;
  unread_.clear();
  return Event::kBroken;
}

bool MessageStream::Write(const std::string& message) {
  const uint64_t length = message.size();
  std::string_view rest = message;
  std::string begin(reinterpret_cast<const char*>(&length), kLengthBytes);
  begin.append(rest.substr(0, kReadBytes));  // a small message takes one call
  rest.remove_prefix(std::min(rest.size(), kReadBytes));
  const std::lock_guard<std::mutex> lock(write_mutex_);
  return SendAll(socket_.get(), begin) && SendAll(socket_.get(), rest);
}

bool MessageStream::PeerHasEnded() const {
  pollfd ended = {.fd = socket_.get(), .events = POLLRDHUP, .revents = 0};
  return poll(&ended, 1, 0) > 0;
}

void MessageStream::End() { shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace tessera::control
