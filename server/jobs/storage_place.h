// Whether files that are open, or in use, are still those that their names lead to: a folder can be removed, moved or
// covered by another disk, and what is then written into the open files is gone with the process.
//
// Thread-safe after the last Remember.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tessera {

class StoragePlace final {
 public:
  // What lies there now is what has to lie there. Nothing for a name that leads nowhere.
  void Remember(const std::string& path);

  // UNAVAILABLE with the first name that leads elsewhere, or nowhere.
  absl::Status Check() const;

 private:
  struct Known {
    std::string path;
    uint64_t device = 0, inode = 0;
  };
  std::vector<Known> known_;
};

}  // namespace tessera
