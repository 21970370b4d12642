// StoragePlace checks whether files in use are still those that their names lead to. A folder can be removed, moved, or
// covered by another mount, and then everything written to the open files is lost with the process.
//
// It keeps the compared files open, so that their inode numbers are not reused. Thread-safe after the last Remember.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace tessera::server {

class StoragePlace final {
 public:
  StoragePlace() = default;
  StoragePlace(StoragePlace&& other) noexcept : known_(std::exchange(other.known_, {})) {}
  StoragePlace& operator=(StoragePlace&& other) noexcept {
    std::swap(known_, other.known_);
    return *this;
  }
  ~StoragePlace();

  // Records the current file at the path as the expected one. Does nothing if the path does not exist.
  void Remember(const std::string& path);

  // UNAVAILABLE with the first path that leads to another file or does not exist.
  absl::Status Check() const;

 private:
  struct Known {
    std::string path;
    int descriptor = -1;
  };
  std::vector<Known> known_;
};

}  // namespace tessera::server
