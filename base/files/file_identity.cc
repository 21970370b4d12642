#include "base/files/file_identity.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files/sha256.h"

namespace tessera::base {
namespace {

namespace fs = std::filesystem;

constexpr int kDeepest = 2;

void AddFiles(const fs::path& folder, int depth, std::vector<std::string>& files) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code unreadable;
    if (absl::StartsWith(it->path().filename().string(), ".")) continue;
    if (it->is_directory(unreadable)) {
      if (depth < kDeepest) AddFiles(it->path(), depth + 1, files);
    } else {
      files.push_back(it->path().string());
    }
  }
}

}  // namespace

FileIdentity IdentityOf(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) return {};
  return {.device = found.st_dev,
          .inode = found.st_ino,
          .bytes = static_cast<uint64_t>(found.st_size),
          .changed_s = found.st_ctim.tv_sec,
          .changed_ns = found.st_ctim.tv_nsec};
}

std::string FolderIdentity(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  if (fs::is_regular_file(folder, error)) {
    files.push_back(folder);
  } else {
    AddFiles(folder, 0, files);
  }
  std::ranges::sort(files);
  Sha256 digest;
  for (const std::string& file : files) {
    const FileIdentity identity = IdentityOf(file);
    digest.UpdatePart(fs::path(file).lexically_relative(folder).string());
    digest.UpdatePart(absl::StrCat(identity.device, " ", identity.inode, " ", identity.bytes, " ", identity.changed_s,
                                   " ", identity.changed_ns));
  }
  return digest.Finish();
}

}  // namespace tessera::base
