#include "base/files/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/files/file_descriptor.h"
#include "base/macros/status_macros.h"
#include "base/text/random_bytes.h"

namespace tessera::base {
namespace {

struct PathParts {
  std::string folder;  // never empty
  std::string name;
};

PathParts SplitPath(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return {.folder = ".", .name = path};
  return {.folder = slash == 0 ? "/" : path.substr(0, slash), .name = path.substr(slash + 1)};
}

absl::Status Failure(absl::StatusCode code, const std::string& path, const std::string& reason) {
  return absl::Status(code, absl::StrCat("cannot write \"", path, "\": ", reason));
}

absl::Status FailureFromErrno(int error, const std::string& path, const std::string& folder) {
  using Code = absl::StatusCode;
  struct Known {
    int error;
    Code code;
    std::string reason;
  };
  const Known known[] = {{ENOENT, Code::kNotFound, absl::StrCat("the folder \"", folder, "\" does not exist")},
                         {ENOTDIR, Code::kFailedPrecondition, absl::StrCat("\"", folder, "\" is not a folder")},
                         {EACCES, Code::kPermissionDenied, absl::StrCat("no permission to write in \"", folder, "\"")},
                         {EPERM, Code::kPermissionDenied, absl::StrCat("no permission to write in \"", folder, "\"")},
                         {EROFS, Code::kPermissionDenied, "the file system is read-only"},
                         {ENOSPC, Code::kResourceExhausted, "the disk is full"},
                         {EDQUOT, Code::kResourceExhausted, "the disk quota is used up"},
                         {EFBIG, Code::kResourceExhausted, "the file is larger than the file size limit allows"},
                         {EMFILE, Code::kUnavailable, "too many files are open"},
                         {ENFILE, Code::kUnavailable, "too many files are open"},
                         {EISDIR, Code::kFailedPrecondition, "a folder of that name exists"},
                         {EEXIST, Code::kAlreadyExists, "the file exists already"},
                         {ENAMETOOLONG, Code::kInvalidArgument, "the name is too long"},
                         {ELOOP, Code::kFailedPrecondition, "too many symbolic links on the way"}};
  const auto* found = std::ranges::find(known, error, &Known::error);
  if (found == std::end(known)) return Failure(Code::kUnavailable, path, std::strerror(error));
  return Failure(found->code, path, found->reason);
}

absl::Status CheckTarget(int folder_fd, const PathParts& parts, const std::string& path) {
  struct stat target;
  // A dangling link is acceptable, because the move replaces it.
  if (::fstatat(folder_fd, parts.name.c_str(), &target, 0) != 0) {
    return errno == ENOENT ? absl::OkStatus() : FailureFromErrno(errno, path, parts.folder);
  }
  if (S_ISDIR(target.st_mode)) return FailureFromErrno(EISDIR, path, parts.folder);
  if (!S_ISREG(target.st_mode)) {
    return Failure(absl::StatusCode::kFailedPrecondition, path, "it is a device or pipe, not a regular file");
  }
  return absl::OkStatus();
}

// Returns 0 or the errno of the failure.
int SyncAndClose(FileDescriptor& file) {
  if (::fsync(file.get()) != 0) return errno;
  return file.Close() != 0 ? errno : 0;
}

// Returns 0 or the errno of the failure.
int MoveIntoPlace(int folder_fd, const std::string& from, const std::string& to, bool overwrite) {
  if (overwrite) return ::renameat(folder_fd, from.c_str(), folder_fd, to.c_str()) == 0 ? 0 : errno;
  if (::renameat2(folder_fd, from.c_str(), folder_fd, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  // File systems without that flag (such as NFS) support links, which also never replace a file.
  if (::linkat(folder_fd, from.c_str(), folder_fd, to.c_str(), 0) != 0) return errno;
  ::unlinkat(folder_fd, from.c_str(), 0);
  return 0;
}

std::string RandomName() {
  return absl::StrCat(".tessera-", absl::Hex(RandomNumber<uint64_t>(), absl::kZeroPad16), ".tmp");
}

}  // namespace

int WriteBytes(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

absl::StatusOr<AtomicFile> AtomicFile::Create(const std::string& path, const WriteFileOptions& options) {
  const PathParts parts = SplitPath(path);
  if (parts.name.empty() || parts.name == "." || parts.name == "..") {
    return Failure(absl::StatusCode::kInvalidArgument, path, "the path names no file");
  }
  if (path.find('\0') != std::string::npos) {
    return Failure(absl::StatusCode::kInvalidArgument, path.c_str(), "the path contains a NUL character");
  }
  AtomicFile result;
  result.path_ = path;
  result.folder_path_ = parts.folder;
  result.name_ = parts.name;
  result.overwrite_ = options.overwrite;
  result.folder_ = FileDescriptor(::open(parts.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!result.folder_.valid()) return FailureFromErrno(errno, path, parts.folder);
  RETURN_IF_ERROR(CheckTarget(result.folder_.get(), parts, path));

  const std::string temporary = RandomName();
  result.file_ = FileDescriptor(::openat(result.folder_.get(), temporary.c_str(),
                                         O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, options.owner_only ? 0600 : 0666));
  if (!result.file_.valid()) return FailureFromErrno(errno, path, parts.folder);
  result.temporary_ = temporary;
  if (options.owner_only && ::fchmod(result.file_.get(), 0600) != 0) return FailureFromErrno(errno, path, parts.folder);
  return result;
}

AtomicFile::~AtomicFile() {
  if (folder_.valid() && !temporary_.empty()) ::unlinkat(folder_.get(), temporary_.c_str(), 0);
}

absl::Status AtomicFile::Append(std::string_view bytes) {
  const int error = WriteBytes(file_.get(), bytes);
  return error == 0 ? absl::OkStatus() : FailureFromErrno(error, path_, folder_path_);
}

// Linux reports since 5.8 whether a file could be written (syncfs(2), ERRORS and VERSIONS).
bool AtomicFile::SyncsTogether() {
  struct utsname system;
  int major = 0, minor = 0;
  if (::uname(&system) != 0 || std::sscanf(system.release, "%d.%d", &major, &minor) != 2) return false;
  return major > 5 || (major == 5 && minor >= 8);
}

absl::Status AtomicFile::SyncFileSystem() {
  return ::syncfs(folder_.get()) == 0 ? absl::OkStatus() : FailureFromErrno(errno, path_, folder_path_);
}

absl::Status AtomicFile::Move() {
  if (file_.valid() && file_.Close() != 0) return FailureFromErrno(errno, path_, folder_path_);
  const int error = MoveIntoPlace(folder_.get(), temporary_, name_, overwrite_);
  if (error != 0) return FailureFromErrno(error, path_, folder_path_);
  temporary_.clear();
  return absl::OkStatus();
}

absl::Status AtomicFile::Commit() {
  if (const int error = SyncAndClose(file_); error != 0) return FailureFromErrno(error, path_, folder_path_);
  RETURN_IF_ERROR(Move());
  // EINVAL: the file system cannot sync folders.
  if (::fsync(folder_.get()) != 0 && errno != EINVAL) return FailureFromErrno(errno, path_, folder_path_);
  return absl::OkStatus();
}

absl::Status WriteFilesAtomically(absl::Span<const FileToWrite> files, const WriteFileOptions& options) {
  if (files.size() < 2 || !AtomicFile::SyncsTogether()) {
    for (const FileToWrite& file : files) RETURN_IF_ERROR(WriteFileAtomically(file.path, file.bytes, options));
    return absl::OkStatus();
  }
  std::vector<AtomicFile> written;
  written.reserve(files.size());
  for (const FileToWrite& file : files) {
    ASSIGN_OR_RETURN(AtomicFile one, AtomicFile::Create(file.path, options));
    RETURN_IF_ERROR(one.Append(file.bytes));
    written.push_back(std::move(one));
  }
  RETURN_IF_ERROR(written.front().SyncFileSystem());
  for (AtomicFile& file : written) RETURN_IF_ERROR(file.Move());
  return written.front().SyncFileSystem();
}

absl::Status WriteFileAtomically(const std::string& path, std::string_view bytes, const WriteFileOptions& options) {
  ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path, options));
  RETURN_IF_ERROR(file.Append(bytes));
  return file.Commit();
}

}  // namespace tessera::base
