// ServedContents makes sure that all groups of one model serve the same bytes, whenever each was loaded.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "absl/status/status.h"

namespace tessera::server {

// Thread-safe.
class ServedContents final {
 public:
  // Called for a group that has loaded a model. `files` identifies its files without reading them; `contents` is the
  // digest of what was read. The first contents accepted for these files are the ones that are served.
  // FAILED_PRECONDITION for different contents, which must not be served together with them.
  absl::Status Accept(const std::string& files, const std::string& contents);

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> served_;  // by `files`; guarded by mutex_
};

}  // namespace tessera::server
