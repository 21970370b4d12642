#include "server/nodes/byte_pump.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/threads/start_thread.h"

namespace tessera::server {
namespace {

constexpr size_t kReadBytes = 256 << 10;
// The largest command has 160 MiB, and HTTP/2 keeps less than that in flight.
constexpr size_t kMostQueued = size_t{256} << 20;

}  // namespace

BytePump::BytePump(int socket, Events events)
    : socket_(socket), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), events_(std::move(events)) {
  fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
  thread_ = base::StartThread([this] { Run(); });
}

BytePump::~BytePump() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void BytePump::Push(std::string bytes) {
  const std::lock_guard lock(mutex_);
  queued_ += bytes.size();
  overflown_ = overflown_ || queued_ > kMostQueued;
  queue_.push_back(std::move(bytes));
  eventfd_write(wake_.get(), 1);
}

void BytePump::Finish() {
  const std::lock_guard lock(mutex_);
  finishing_ = true;
  eventfd_write(wake_.get(), 1);
}

// Returns false when nothing can be written any more.
bool BytePump::WriteSome() {
  while (true) {
    std::string* first = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (queue_.empty()) return true;
      first = &queue_.front();  // stays in place while others are added
    }
    const ssize_t sent = send(socket_.get(), first->data() + written_, first->size() - written_, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    written_ += static_cast<size_t>(sent);
    if (written_ < first->size()) continue;
    const std::lock_guard lock(mutex_);
    queued_ -= written_;
    written_ = 0;
    queue_.pop_front();
  }
}

void BytePump::Run() {
  std::string buffer(kReadBytes, '\0');
  while (true) {
    bool waits = false;
    {
      const std::lock_guard lock(mutex_);
      if (ending_) return;
      if (overflown_ || (finishing_ && queue_.empty())) break;
      waits = !queue_.empty();
    }
    pollfd events[] = {{socket_.get(), static_cast<short>(waits ? POLLIN | POLLOUT : POLLIN), 0},
                       {wake_.get(), POLLIN, 0}};
    if (poll(events, 2, -1) < 0 && errno != EINTR) break;
    eventfd_t rings = 0;
    eventfd_read(wake_.get(), &rings);
    if (!WriteSome()) break;
    if ((events[0].revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
    const ssize_t got = recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got > 0) {
      events_.read(buffer.substr(0, static_cast<size_t>(got)));
    } else if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
      break;
    }
  }
  shutdown(socket_.get(), SHUT_RDWR);
  events_.closed();
}

}  // namespace tessera::server
