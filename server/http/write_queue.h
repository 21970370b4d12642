// WriteQueue holds the bytes that a connection has yet to write, in order: bytes in memory, and bytes that are read
// when they are due.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "base/files/byte_source.h"

namespace tessera::server {

// For one thread, except for bytes().
class WriteQueue final {
 public:
  // Return whether the queue was empty, so that a write must be started.
  bool Add(std::string bytes) { return AddPart({.size = bytes.size(), .held = std::move(bytes)}); }
  bool Add(base::SharedBytes bytes) { return AddPart({.size = bytes->size(), .read = std::move(bytes)}); }

  // Requires a non-empty queue. Returns where the next bytes are read, from offset() on; null if they are held().
  const base::SharedBytes& source() const { return parts_.front().read; }
  uint64_t offset() const { return written_; }
  // Returns the next bytes; not empty.
  std::string_view held() const { return std::string_view(parts_.front().held).substr(written_); }

  // Removes bytes that have been written.
  void Remove(size_t bytes) {
    bytes_ -= bytes;
    written_ += bytes;
    if (written_ < parts_.front().size) return;
    parts_.pop_front();
    written_ = 0;
  }

  bool empty() const { return parts_.empty(); }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Part {
    uint64_t size = 0;  // not 0
    std::string held = {};
    base::SharedBytes read = nullptr;
  };

  bool AddPart(Part part) {
    bytes_ += part.size;
    parts_.push_back(std::move(part));
    return parts_.size() == 1;
  }

  std::deque<Part> parts_;
  uint64_t written_ = 0;  // bytes of the first part
  std::atomic<uint64_t> bytes_ = 0;
};

}  // namespace tessera::server
