#include "base/files/private_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/files/file_descriptor.h"
#include "base/macros/status_macros.h"

namespace tessera::base {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kOwnerOnly = 0700;

absl::Status Failure(const std::string& path, int error) {
  if (error == ENOSPC || error == EDQUOT) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot make \"", path, "\": the disk is full"));
  }
  return absl::UnavailableError(absl::StrCat("cannot make \"", path, "\": ", std::strerror(error)));
}

mode_t ModeOf(const fs::path& path) {
  struct stat about = {};
  return stat(path.c_str(), &about) == 0 ? about.st_mode : 0;
}

// Returns the widest class of readers that the bits allow.
Readers ReadersBy(mode_t mode, mode_t everyone, mode_t group) {
  if ((mode & everyone) == everyone) return Readers::kEveryone;
  return (mode & group) == group ? Readers::kGroup : Readers::kOwner;
}

absl::Status Make(const std::string& path, mode_t mode) {
  fs::path folder(path);
  if (!folder.has_filename()) folder = folder.parent_path();  // for "data/"
  const fs::path above = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  std::error_code error;
  int made = ::mkdir(folder.c_str(), mode);
  if (made != 0 && errno == ENOENT) {
    RETURN_IF_ERROR(Make(above.string(), mode));
    made = ::mkdir(folder.c_str(), mode);
  }
  if (made != 0) {
    if (errno != EEXIST) return Failure(path, errno);
    return fs::is_directory(folder, error) ? absl::OkStatus() : Failure(path, ENOTDIR);
  }
  // The umask may have removed bits.
  if (mode == kOwnerOnly && ::chmod(folder.c_str(), mode) != 0) return Failure(path, errno);
  // The folder's own entry in its parent must be durable before a file in it can be.
  return SyncFolder(above.string());
}

}  // namespace

absl::Status MakeFolder(const std::string& path) { return Make(path, 0777); }

absl::Status MakePrivateFolder(const std::string& path) { return Make(path, kOwnerOnly); }

absl::Status SyncFolder(const std::string& path) {
  const FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return Failure(path, errno);
  return ::fsync(folder.get()) != 0 && errno != EINVAL ? Failure(path, errno) : absl::OkStatus();
}

absl::Status MakePrivateFile(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return errno == EEXIST ? absl::OkStatus() : Failure(path, errno);
  return ::fchmod(file.get(), 0600) == 0 ? absl::OkStatus() : Failure(path, errno);
}

Readers ReadersOfDataFolder(const std::string& folder) {
  const Readers enter = ReadersBy(ModeOf(folder), S_IXOTH, S_IXGRP);
  if (enter == Readers::kOwner) return Readers::kOwner;
  Readers inside = Readers::kOwner;
  for (const char* name : {"jobs.sqlite", "jobs.sqlite-wal"}) {
    inside = std::max(inside, ReadersBy(ModeOf(fs::path(folder) / name), S_IROTH, S_IRGRP));
  }
  inside = std::max(inside, ReadersBy(ModeOf(fs::path(folder) / "images"), S_IROTH | S_IXOTH, S_IRGRP | S_IXGRP));
  return std::min(enter, inside);
}

}  // namespace tessera::base
