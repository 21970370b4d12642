// BackupManifest lists the contents of a backup. It is the last file of the archive, so that an archive without it is
// known to be incomplete.
//
// The first line is a JSON object; a line "SHA256 BYTES NAME" follows for each file; the last line is "end SHA256" with
// the digest of everything before it. The digests detect damage. They do not prove who made the backup.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::server {

inline constexpr char kManifestName[] = "MANIFEST";
inline constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 30;

struct BackedUpFile {
  uint64_t bytes = 0;
  std::string sha256;  // 64 hexadecimal digits

  bool operator==(const BackedUpFile&) const = default;
};

struct BackupManifest {
  std::string program;                             // version of the program that made the backup
  int64_t schema = 0;                              // version of the job store's schema; 0: the backup has no job store
  int64_t created_s = 0;                           // seconds since 1970
  int64_t lost_images = 0;                         // images of ended jobs that the data folder lacked
  std::map<std::string, BackedUpFile> files = {};  // by name

  bool operator==(const BackupManifest&) const = default;
};

std::string ManifestText(const BackupManifest& manifest);

// INVALID_ARGUMENT: damaged. FAILED_PRECONDITION: a later format.
absl::StatusOr<BackupManifest> ParseManifest(std::string_view text);

// INVALID_ARGUMENT unless a backup may contain a file of this name: that of the job store, or one in a folder of
// data_folder.h. Such a name is relative, at most 255 bytes long, and no part of it begins with a dot.
absl::Status CheckBackedUpName(std::string_view name);

}  // namespace tessera::server
