// ServerFolder is the folder of one server's private files (its workers' records) where several servers share a data
// folder. It is named after the machine and the first number that no living process uses, so that a server that
// restarts after being killed finds its workers.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/files/process_lock.h"

namespace tessera::server {

class ServerFolder final {
 public:
  ServerFolder() = default;  // no folder

  static absl::StatusOr<ServerFolder> Take(const std::string& data_folder);

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  base::ProcessLock lock_;
};

}  // namespace tessera::server
