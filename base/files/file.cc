#include "base/files/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/git_lfs.h"
#include "base/macros/status_macros.h"
#include "base/text/hub_name.h"

namespace tessera::base {

absl::StatusOr<ReadOnlyFile> ReadOnlyFile::Open(const std::string& path, const std::string& name) {
  if (path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": the path holds a NUL byte"));
  }
  // Without O_NONBLOCK opening a pipe would wait for a writer.
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    const int reason = errno;
    struct stat link;
    if (reason == ENOENT && lstat(path.c_str(), &link) == 0 && S_ISLNK(link.st_mode)) {
      return absl::NotFoundError(absl::StrCat(
          "cannot open ", name, ": it is a link to a missing file, as an interrupted download into the hub's cache ",
          "leaves it; complete the download with: ", HubDownloadCommand(path)));
    }
    return absl::ErrnoToStatus(reason, absl::StrCat("cannot open ", name));
  }
  struct stat info;
  if (fstat(file.get(), &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot examine ", name));
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, S_ISDIR(info.st_mode) ? " is a folder" : " is a pipe or device", "; it must be a file"));
  }
  return ReadOnlyFile(std::move(file), static_cast<uint64_t>(info.st_size), name);
}

absl::Status ReadOnlyFile::Read(uint64_t offset, std::span<std::byte> out) const {
  constexpr size_t kMaxRead = 1 << 30;  // one read(2) takes at most 2 GiB
  const auto cut_short = [&](uint64_t at) {
    return absl::DataLossError(
        absl::StrCat(name_, " ends at byte ", at, "; it was ", size_, " bytes long when it was opened"));
  };
  if (offset > size_ || out.size() > size_ - offset) {
    return absl::DataLossError(
        absl::StrCat(name_, " has ", size_, " bytes; bytes ", offset, " to ", offset + out.size(), " were requested"));
  }
  while (!out.empty()) {
    const ssize_t count = pread(file_.get(), out.data(), std::min(out.size(), kMaxRead), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", name_));
    if (count == 0) return cut_short(offset);
    offset += static_cast<uint64_t>(count);
    out = out.subspan(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, const std::string& name, size_t max_bytes) {
  ASSIGN_OR_RETURN(ReadOnlyFile file, ReadOnlyFile::Open(path, name));
  if (file.size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has ", file.size(), " bytes; at most ", max_bytes, " are valid"));
  }
  std::string text(file.size(), '\0');
  RETURN_IF_ERROR(file.Read(0, std::as_writable_bytes(std::span(text))));
  if (IsGitLfsPointer(text)) return GitLfsPointerError(name);
  return text;
}

std::optional<std::string> ReadSmallFile(const std::string& path, size_t limit) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string bytes(limit + 1, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
}

bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

}  // namespace tessera::base
