#include "base/files/git_lfs.h"

#include "absl/strings/str_cat.h"

namespace tessera::base {

bool IsGitLfsPointer(std::string_view first_bytes) { return first_bytes.starts_with(kGitLfsBeginning); }

absl::Status GitLfsPointerError(const std::string& name) {
  return absl::FailedPreconditionError(
      absl::StrCat(name, " is a git-lfs pointer, not the file itself; in the model's folder, run: git lfs pull"));
}

}  // namespace tessera::base
