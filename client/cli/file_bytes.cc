#include "client/cli/file_bytes.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr size_t kSignatureBytes = 12;

struct CloseFile {
  void operator()(FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<FILE, CloseFile>;

}  // namespace

absl::StatusOr<std::string> ReadFileBytes(const std::string& path) {
  const auto failure = [&](const char* reason) {
    return absl::NotFoundError(absl::StrCat("'", path, "' cannot be read: ", reason));
  };
  const File file(std::fopen(path.c_str(), "re"));
  if (file == nullptr) return failure(std::strerror(errno));
  struct stat about;
  if (fstat(fileno(file.get()), &about) != 0) return failure(std::strerror(errno));
  if (!S_ISREG(about.st_mode)) return failure("it is not a regular file");
  std::string bytes;
  char block[1 << 16];
  while (const size_t got = std::fread(block, 1, sizeof(block), file.get())) {
    if (bytes.size() + got > kMaxBytes) return failure("it is larger than 1 GiB");
    bytes.append(block, got);
  }
  if (std::ferror(file.get()) != 0) return failure("the disk reports an error");
  return bytes;
}

std::string FirstBytes(const std::string& path) {
  char bytes[kSignatureBytes];
  struct stat about;
  if (stat(path.c_str(), &about) != 0 || !S_ISREG(about.st_mode)) return "";
  const File file(std::fopen(path.c_str(), "re"));
  if (file == nullptr) return "";
  return std::string(bytes, std::fread(bytes, 1, sizeof(bytes), file.get()));
}

bool LooksLikeImage(absl::string_view bytes) {
  return absl::StartsWith(bytes, "\x89PNG\r\n\x1A\n") || absl::StartsWith(bytes, "\xFF\xD8\xFF") ||
         (absl::StartsWith(bytes, "RIFF") && bytes.substr(std::min<size_t>(8, bytes.size()), 4) == "WEBP");
}

}  // namespace tessera
