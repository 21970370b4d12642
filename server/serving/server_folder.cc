#include "server/serving/server_folder.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/private_files.h"
#include "base/macros/status_macros.h"

namespace tessera::server {
namespace {

constexpr int kMostServers = 64;  // per machine
// A killed server takes a moment to exit, and its successor needs the same folder to find the workers.
constexpr absl::Duration kTimeout = absl::Milliseconds(500);

}  // namespace

absl::StatusOr<ServerFolder> ServerFolder::Take(const std::string& data_folder) {
  char host[256] = "";
  if (gethostname(host, sizeof(host) - 1) != 0) return absl::UnavailableError("this machine has no name");
  const std::string servers = data_folder + "/servers";
  RETURN_IF_ERROR(base::MakePrivateFolder(servers));
  for (int number = 0; number < kMostServers; ++number) {
    ServerFolder folder;
    folder.path_ = absl::StrCat(servers, "/", host, "-", number);
    absl::StatusOr<base::ProcessLock> lock = base::ProcessLock::Take(folder.path_ + ".lock", kTimeout);
    if (absl::IsFailedPrecondition(lock.status())) continue;  // another process uses it
    if (!lock.ok()) return lock.status();
    folder.lock_ = *std::move(lock);
    RETURN_IF_ERROR(base::MakePrivateFolder(folder.path_));
    return folder;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("this machine runs ", kMostServers, " servers of the data folder already"));
}

}  // namespace tessera::server
