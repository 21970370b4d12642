// Recognises the small pointer files that git-lfs leaves in place of large files.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tessera::base {

inline constexpr std::string_view kGitLfsBeginning = "version https://git-lfs.github.com/spec/";
inline constexpr size_t kMaxGitLfsPointerBytes = 1024;  // by its specification

// Whether a file with this beginning is a pointer file.
bool IsGitLfsPointer(std::string_view first_bytes);

// Returns FailedPrecondition about the file `name`, with the command that fetches it.
absl::Status GitLfsPointerError(const std::string& name);

}  // namespace tessera::base
