// The files of a repository at one commit, as the hub's API lists them. Every byte comes from outside: names that could
// lead out of a folder, links, and malformed digests and sizes are refused. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::client {

struct HubFile {
  std::string path;  // relative, with slashes
  uint64_t size = 0;
  // The expected digest: SHA-256 of the bytes for a file in large file storage (LFS), else git's SHA-1 of the blob.
  // Both are empty if the listing has none.
  std::string sha256;
  std::string git_sha1;
};

struct HubListing {
  std::string commit;     // 40 hexadecimal digits
  std::string licence;    // the SPDX-like identifier of the hub, such as "apache-2.0"; empty: unknown
  bool gated = false;     // its licence must be accepted on a web page
  bool has_sizes = true;  // false: `files` has names only
  std::vector<HubFile> files;
};

// Reads the answer to /api/models/ORG/NAME/revision/REVISION?blobs=true.
absl::StatusOr<HubListing> ParseRepository(std::string_view json);

// Reads one page of /api/models/ORG/NAME/tree/COMMIT?recursive=true.
absl::StatusOr<std::vector<HubFile>> ParseTree(std::string_view json);

// Returns an error if the path of a file is absolute, contains "..", a backslash or a control character, or is
// otherwise no relative path of plain names; or if two files have the same path.
absl::Status CheckFiles(const std::vector<HubFile>& files);

// Whether the text is a commit: 40 hexadecimal digits in lower case.
bool IsHubCommit(std::string_view text);

// INVALID_ARGUMENT if `revision` cannot be the name of a branch or tag or a commit.
absl::Status CheckRevision(std::string_view revision);

}  // namespace tessera::client
