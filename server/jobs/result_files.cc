#include "server/jobs/result_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/image/atomic_file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kUnavailable[] = "the disk of the results reports an error: ";

// The folder's own entry in its parent must be durable before a file in it can be.
absl::Status MakeFolder(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0777) != 0) {
    if (errno == EEXIST) return absl::OkStatus();
    if (errno == ENOSPC || errno == EDQUOT) return absl::ResourceExhaustedError("the disk of the results is full");
    return absl::UnavailableError(absl::StrCat(kUnavailable, std::strerror(errno)));
  }
  const int parent = ::open(folder.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent < 0) return absl::UnavailableError(absl::StrCat(kUnavailable, std::strerror(errno)));
  const int result = ::fsync(parent);
  const int error = errno;
  ::close(parent);
  if (result != 0 && error != EINVAL) return absl::UnavailableError(absl::StrCat(kUnavailable, std::strerror(error)));
  return absl::OkStatus();
}

}  // namespace

DiskResultFiles::DiskResultFiles(std::string folder) : folder_(std::move(folder)) {}

absl::Status DiskResultFiles::Write(const std::string& name, const std::string& bytes) {
  const fs::path path = fs::path(folder_) / name;
  absl::Status status = MakeFolder(folder_);
  status.Update(MakeFolder(path.parent_path()));
  status.Update(WriteFileAtomically(path.string(), bytes));
  return status;
}

absl::StatusOr<std::string> DiskResultFiles::Read(const std::string& name, uint64_t limit) {
  const fs::path path = fs::path(folder_) / name;
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  if (error == std::errc::no_such_file_or_directory) return absl::NotFoundError("the image's file is gone");
  if (error) return absl::UnavailableError(absl::StrCat(kUnavailable, error.message()));
  if (size > limit) return absl::ResourceExhaustedError("the image's file is larger than any image may be");
  std::string bytes(size, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  if (!file) return absl::UnavailableError("the image's file cannot be read");
  return bytes;
}

absl::Status DiskResultFiles::Remove(const std::string& name) {
  std::error_code error;
  fs::remove(fs::path(folder_) / name, error);
  return error ? absl::UnavailableError(absl::StrCat(kUnavailable, error.message())) : absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> DiskResultFiles::List() {
  std::vector<std::string> names;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder_, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code unknown;
    if (entry->is_directory(unknown)) continue;
    names.push_back(entry->path().lexically_relative(folder_).generic_string());
  }
  if (error) return absl::UnavailableError(absl::StrCat(kUnavailable, error.message()));
  return names;
}

}  // namespace tessera
