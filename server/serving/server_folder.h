// The folder of what one server keeps for itself, its workers' records, where several share a data folder: named after
// the machine, and the first of them that no living process has. So a server that was killed finds its workers again.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/process_lock.h"

namespace tessera::server {

class ServerFolder final {
 public:
  ServerFolder() = default;  // none

  static absl::StatusOr<ServerFolder> Take(const std::string& data_folder);

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  base::ProcessLock lock_;
};

}  // namespace tessera::server
