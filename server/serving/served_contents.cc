#include "server/serving/served_contents.h"

#include "absl/strings/str_cat.h"

namespace tessera::server {

absl::Status ServedContents::Accept(const std::string& files, const std::string& contents) {
  const std::lock_guard lock(mutex_);
  const std::string& served = served_.emplace(files, contents).first->second;
  if (served == contents) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the model's files were replaced: their digest is ", contents, ", and the served model has ", served,
                   "; send SIGHUP to the server or restart it to serve the new files in all groups, or restore the old "
                   "files to continue with this group"));
}

}  // namespace tessera::server
