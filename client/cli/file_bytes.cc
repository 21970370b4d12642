#include "client/cli/file_bytes.h"

#include <sys/stat.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files/file.h"

namespace tessera::client {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr size_t kSignatureBytes = 12;

}  // namespace

absl::StatusOr<std::string> ReadFileBytes(const std::string& path) {
  absl::StatusOr<std::string> bytes = base::ReadWholeFile(path, absl::StrCat("'", path, "'"), kMaxBytes);
  if (bytes.ok()) return bytes;
  return absl::NotFoundError(std::string(bytes.status().message()));
}

std::string FirstBytes(const std::string& path) {
  struct stat about;
  if (stat(path.c_str(), &about) != 0 || !S_ISREG(about.st_mode)) return "";
  return base::ReadSmallFile(path, kSignatureBytes).value_or("");
}

bool LooksLikeImage(absl::string_view bytes) {
  return absl::StartsWith(bytes, "\x89PNG\r\n\x1A\n") || absl::StartsWith(bytes, "\xFF\xD8\xFF") ||
         (absl::StartsWith(bytes, "RIFF") && bytes.substr(std::min<size_t>(8, bytes.size()), 4) == "WEBP");
}

}  // namespace tessera::client
