// ContentCache stores computed values in a folder, each under a digest of everything that it was computed from. An
// entry is therefore always valid, whichever process wrote it, and never has to be removed because of its age.
//
// Any number of processes may use one folder at the same time: entries are written atomically, and two processes that
// write the same entry write the same bytes. A damaged or truncated entry counts as missing. LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::runtime {

// Returns the digest of everything that determines a value: 64 hexadecimal digits. Different lists of parts have
// different keys.
std::string ContentKey(const std::vector<std::string>& parts);

class ContentCache {
 public:
  // Creates the folder if it is missing. Errors name the path.
  static absl::StatusOr<ContentCache> Open(const std::string& folder);

  // Returns the bytes stored under that key; nothing if there are none or they are damaged.
  std::optional<std::string> Find(const std::string& key) const;

  // Whether there is a file for that key. Its contents are not read.
  bool Has(const std::string& key) const;

  // Stores the bytes. Returns ResourceExhausted if the disk is full; the caller can continue without the entry.
  absl::Status Keep(const std::string& key, std::string_view bytes) const;

 private:
  explicit ContentCache(std::string folder) : folder_(std::move(folder)) {}

  std::string PathOf(const std::string& key) const;

  std::string folder_;
};

}  // namespace tessera::runtime
