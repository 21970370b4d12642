// SHA-256, and bytes and names that nobody can guess.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tessera {

inline constexpr size_t kSha256Bytes = 32;

// kSha256Bytes bytes.
std::string Sha256Of(absl::string_view bytes);

// From the system; at most 256 bytes.
std::string RandomBytes(size_t count);

// `prefix` and 128 random bits in lower-case hexadecimal: "job_5f0c…".
std::string RandomId(absl::string_view prefix);

}  // namespace tessera
