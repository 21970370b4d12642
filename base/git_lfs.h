// The small texts that git-lfs leaves where a large file should be.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tessera::base {

inline constexpr std::string_view kGitLfsBeginning = "version https://git-lfs.github.com/spec/";
inline constexpr size_t kMaxGitLfsPointerBytes = 1024;  // by its specification

// Whether a file that begins so is such a text.
bool IsGitLfsPointer(std::string_view first_bytes);

// FailedPrecondition about the file `name`, with the command that fetches it.
absl::Status GitLfsPointerError(const std::string& name);

}  // namespace tessera::base
