// FileDescriptor owns one file descriptor of the system.
#pragma once

#include <unistd.h>

#include <utility>

namespace tessera::base {

class FileDescriptor final {
 public:
  explicit FileDescriptor(int value = -1) : value_(value) {}
  FileDescriptor(FileDescriptor&& other) noexcept : value_(other.Release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~FileDescriptor() {
    if (value_ >= 0) ::close(value_);
  }

  int get() const { return value_; }
  bool valid() const { return value_ >= 0; }

  // Transfers ownership to the caller; -1 if there is no descriptor.
  int Release() { return std::exchange(value_, -1); }

  // Some file systems report a failed write only here. Returns 0, or -1 with errno; 0 if there is no descriptor.
  int Close() { return value_ < 0 ? 0 : ::close(Release()); }

 private:
  int value_;
};

}  // namespace tessera::base
