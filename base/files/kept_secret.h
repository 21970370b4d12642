// KeptSecret returns random bytes that stay the same across processes.
#pragma once

#include <cstddef>
#include <string>

namespace tessera::base {

inline constexpr size_t kSecretBytes = 32;

// Returns the kSecretBytes bytes of the file at `path`, which the first call creates, with its folder, for the owner
// only. Processes that make it at the same time get the same bytes. If it cannot be written, the bytes are those of
// this call alone.
std::string KeptSecret(const std::string& path);

}  // namespace tessera::base
