// Whether files that are open, or in use, are still those that their names lead to: a folder can be removed, moved or
// covered by another disk, and what is then written into the open files is gone with the process.
//
// Holds what it compares with open, so that no number of it is used again. Thread-safe after the last Remember.
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

  // What lies there now is what has to lie there. Nothing for a name that leads nowhere.
  void Remember(const std::string& path);

  // UNAVAILABLE with the first name that leads elsewhere, or nowhere.
  absl::Status Check() const;

 private:
  struct Known {
    std::string path;
    int descriptor = -1;
  };
  std::vector<Known> known_;
};

}  // namespace tessera::server
