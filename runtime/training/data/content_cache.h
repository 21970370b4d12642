// What was computed from some content, kept in a folder under a digest of all that it was computed from: an entry is
// right for as long as it exists, whoever wrote it, and nothing ever has to be thrown away for being old.
//
// Any number of processes may use one folder at once: entries are written whole or not at all, and two that write the
// same one write the same bytes. An entry that is damaged or cut short counts as none. Free of LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::runtime {

// The digest of everything that decides a value: 64 hexadecimal digits. Different lists of parts have different keys.
std::string ContentKey(const std::vector<std::string>& parts);

class ContentCache {
 public:
  // Makes the folder where it is missing. Errors name the path.
  static absl::StatusOr<ContentCache> Open(const std::string& folder);

  // The bytes kept under that key; nothing where there are none or they are not what was kept.
  std::optional<std::string> Find(const std::string& key) const;

  // Whether there is a file of that key, whose contents are not looked at.
  bool Has(const std::string& key) const;

  // Keeps them. ResourceExhausted where the disk is full: whoever computed them can go on without.
  absl::Status Keep(const std::string& key, std::string_view bytes) const;

 private:
  explicit ContentCache(std::string folder) : folder_(std::move(folder)) {}

  std::string PathOf(const std::string& key) const;

  std::string folder_;
};

}  // namespace tessera::runtime
