// The bytes that a connection has still to write, in order.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::server {

// For one thread, but for bytes().
class WriteQueue final {
 public:
  // Whether they are the only ones, so that nobody writes yet.
  bool Add(std::string bytes) {
    bytes_ += bytes.size();
    chunks_.push_back(std::move(bytes));
    return chunks_.size() == 1;
  }

  // What is next, not empty, of a queue that is not.
  std::string_view front() const { return std::string_view(chunks_.front()).substr(written_); }

  // So many of front() have been written.
  void Remove(size_t bytes) {
    bytes_ -= bytes;
    written_ += bytes;
    if (written_ < chunks_.front().size()) return;
    chunks_.pop_front();
    written_ = 0;
  }

  bool empty() const { return chunks_.empty(); }
  size_t bytes() const { return bytes_; }

 private:
  std::deque<std::string> chunks_;  // none of them empty
  size_t written_ = 0;              // of the first
  std::atomic<size_t> bytes_ = 0;
};

}  // namespace tessera::server
