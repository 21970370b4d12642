#include "server/serving/served_contents.h"

#include "absl/strings/str_cat.h"

namespace tessera::server {

absl::Status ServedContents::Accept(const std::string& files, const std::string& contents) {
  const std::lock_guard lock(mutex_);
  const std::string& served = served_.emplace(files, contents).first->second;
  if (served == contents) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the model's files were replaced: their digest is ", contents, ", and what is served has ", served,
                   "; SIGHUP or a restart of the server serves the new ones in all groups, and with the old files "
                   "back in their place this group goes on"));
}

}  // namespace tessera::server
