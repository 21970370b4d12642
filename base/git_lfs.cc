#include "base/git_lfs.h"

#include "absl/strings/str_cat.h"

namespace tessera::base {

bool IsGitLfsPointer(std::string_view first_bytes) { return first_bytes.starts_with(kGitLfsBeginning); }

absl::Status GitLfsPointerError(const std::string& name) {
  return absl::FailedPreconditionError(absl::StrCat(
      name,
      " is a git-lfs pointer in place of the file; fetch the files of the model with, in its folder: git lfs pull"));
}

}  // namespace tessera::base
