// Which bytes the groups of one model serve: all of them the same ones, however often and whenever each was loaded.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "absl/status/status.h"

namespace tessera::server {

// Thread-safe.
class ServedContents final {
 public:
  // Of one group that has loaded a model: `files` is what is known of its files without reading them, `contents` the
  // digest of what was read. The first one of all groups with these files is what is served. FAILED_PRECONDITION for
  // others, which must not be served beside it.
  absl::Status Accept(const std::string& files, const std::string& contents);

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> served_;  // by the files; guarded by mutex_
};

}  // namespace tessera::server
