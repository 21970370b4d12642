#include "control/message_stream.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/steady_time.h"

namespace tessera::control {
namespace {

using google::protobuf::io::CodedInputStream;

constexpr size_t kReadBytes = 32 << 10;  // at once
constexpr size_t kKeptBytes = 1 << 20;   // of memory, for the next message
constexpr size_t kMostLengthBytes = 10;  // which no varint exceeds

struct Length {
  size_t own_bytes = 0;
  size_t message_bytes = 0;
};

// That of the message which begins there; none: there is no such thing, or not all of it.
std::optional<Length> LengthAt(const std::string& bytes) {
  const auto size = static_cast<int>(std::min(bytes.size(), kMostLengthBytes));
  CodedInputStream input(reinterpret_cast<const uint8_t*>(bytes.data()), size);
  uint32_t length;
  if (!input.ReadVarint32(&length)) return std::nullopt;
  return Length{.own_bytes = static_cast<size_t>(input.CurrentPosition()), .message_bytes = length};
}

bool SendAll(int socket, const std::string& bytes) {
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

MessageStream::Event MessageStream::Read(google::protobuf::MessageLite& message, absl::Duration timeout) {
  const absl::Duration deadline = base::SteadyNow() + timeout;
  while (true) {
    if (broken_) return Event::kBroken;
    const std::optional<Length> length = LengthAt(unread_);
    if (length.has_value() ? length->message_bytes > most_bytes_ : unread_.size() >= kMostLengthBytes) return Break();
    const size_t whole = length.has_value() ? length->own_bytes + length->message_bytes : SIZE_MAX;
    if (unread_.size() >= whole) {
      const bool parsed =
          message.ParseFromArray(unread_.data() + length->own_bytes, static_cast<int>(length->message_bytes));
      if (!parsed) return Break();
      unread_.erase(0, whole);
      if (unread_.empty() && unread_.capacity() > kKeptBytes) unread_.shrink_to_fit();
      return Event::kMessage;
    }
    // A peer that dies leaves a part of a message.
    if (const Event received = Receive(deadline); received != Event::kMessage) return received;
  }
}

// Puts what there is behind what is unread.
MessageStream::Event MessageStream::Receive(absl::Duration deadline) {
  while (deadline != absl::InfiniteDuration()) {
    pollfd readable = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
    const absl::Duration left = std::clamp(deadline - base::SteadyNow(), absl::ZeroDuration(), absl::Hours(1));
    // A part of a millisecond is waited for, too.
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

bool MessageStream::Write(const google::protobuf::MessageLite& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream output(&bytes);
    if (!google::protobuf::util::SerializeDelimitedToZeroCopyStream(message, &output)) return false;
  }
  const std::lock_guard<std::mutex> lock(write_mutex_);
  return SendAll(socket_.get(), bytes);
}

bool MessageStream::PeerHasEnded() const {
  pollfd ended = {.fd = socket_.get(), .events = POLLRDHUP, .revents = 0};
  return poll(&ended, 1, 0) > 0;
}

void MessageStream::End() { shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace tessera::control
