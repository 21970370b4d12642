// The headers of a tar archive (POSIX.1-2001 ustar) of regular files. Sizes from 8 GiB on are stored in base 256, as
// GNU tar and libarchive read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::server {

inline constexpr size_t kTarBlock = 512;

struct TarEntry {
  std::string name;
  uint64_t bytes = 0;
  int64_t modified_s = 0;  // seconds since 1970
};

// Returns the block before the bytes of the file. INVALID_ARGUMENT: the format cannot represent the name.
absl::StatusOr<std::string> TarHeader(const TarEntry& entry);

// `block` has kTarBlock bytes. Returns nullopt for a block of zeros, which ends an archive. INVALID_ARGUMENT: it is no
// header, or that of anything but a regular file, such as a link, a folder or a device.
absl::StatusOr<std::optional<TarEntry>> ParseTarHeader(std::string_view block);

// Returns the number of bytes after a file of this size up to the next block.
inline size_t TarPadding(uint64_t bytes) { return (kTarBlock - bytes % kTarBlock) % kTarBlock; }

}  // namespace tessera::server
