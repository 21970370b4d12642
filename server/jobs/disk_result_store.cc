#include "server/jobs/disk_result_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/atomic_file.h"
#include "base/files/file_descriptor.h"
#include "base/files/private_files.h"
#include "base/macros/status_macros.h"

namespace tessera::server {
namespace {

namespace fs = std::filesystem;

constexpr char kUnavailable[] = "the disk of the results reports an error: ";

absl::Status UnavailableFor(int error) {
  return absl::UnavailableError(absl::StrCat(kUnavailable, std::generic_category().message(error)));
}

absl::StatusOr<base::FileDescriptor> OpenResult(const std::string& path) {
  base::FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.valid()) return file;
  return errno == ENOENT ? absl::NotFoundError("the image's file is missing") : UnavailableFor(errno);
}

// Attributes that change when a file is replaced or written, but not when it is removed.
struct FileVersion {
  dev_t device = 0;
  ino_t inode = 0;
  uint64_t bytes = 0;
  int64_t written_s = 0, written_ns = 0;

  bool operator==(const FileVersion&) const = default;
};

absl::StatusOr<FileVersion> VersionOf(const base::FileDescriptor& file) {
  struct stat found = {};
  if (fstat(file.get(), &found) != 0) return UnavailableFor(errno);
  return FileVersion{.device = found.st_dev,
                     .inode = found.st_ino,
                     .bytes = static_cast<uint64_t>(found.st_size),
                     .written_s = found.st_mtim.tv_sec,
                     .written_ns = found.st_mtim.tv_nsec};
}

class OpenedResult final : public base::ByteSource {
 public:
  // `kept`: the file's descriptor; invalid if each read opens the file.
  OpenedResult(std::string path, const FileVersion& version, base::FileDescriptor kept)
      : path_(std::move(path)), version_(version), kept_(std::move(kept)) {}

  uint64_t size() const override { return version_.bytes; }

  absl::StatusOr<std::string> Read(uint64_t offset, size_t count) const override {
    if (kept_.valid()) return ReadFrom(kept_, offset, count);
    ASSIGN_OR_RETURN(const base::FileDescriptor file, OpenResult(path_));
    return ReadFrom(file, offset, count);
  }

 private:
  absl::StatusOr<std::string> ReadFrom(const base::FileDescriptor& file, uint64_t offset, size_t count) const {
    const auto changed = [] { return absl::DataLossError("the image's file was changed while it was read"); };
    ASSIGN_OR_RETURN(const FileVersion version, VersionOf(file));
    if (version != version_) return changed();
    offset = std::min(offset, size());
    std::string bytes(std::min<uint64_t>(count, size() - offset), '\0');
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t more = pread(file.get(), &bytes[done], bytes.size() - done, static_cast<off_t>(offset + done));
      if (more < 0 && errno == EINTR) continue;
      if (more < 0) return UnavailableFor(errno);
      if (more == 0) return changed();
      done += static_cast<size_t>(more);
    }
    return bytes;
  }

  const std::string path_;
  const FileVersion version_;
  const base::FileDescriptor kept_;
};

}  // namespace

absl::Status AsDiskFailure(const absl::Status& status) {
  if (status.ok() || absl::IsResourceExhausted(status)) return status;
  return absl::UnavailableError(status.message());
}

DiskResultStore::DiskResultStore(std::string folder, std::function<int()> highest_descriptor)
    : folder_(std::move(folder)), highest_descriptor_(std::move(highest_descriptor)) {}

absl::Status DiskResultStore::Open() {
  RETURN_IF_ERROR(base::MakePrivateFolder(folder_));
  place_ = StoragePlace();
  place_.Remember(folder_);
  return absl::OkStatus();
}

absl::Status DiskResultStore::Write(const std::string& name, const std::string& bytes) {
  return WriteAll({{name, bytes}});
}

absl::Status DiskResultStore::WriteAll(absl::Span<const ResultFile> files) {
  RETURN_IF_ERROR(CheckPlace());
  std::vector<base::FileToWrite> written;
  for (const ResultFile& file : files) {
    const fs::path path = fs::path(folder_) / file.name;
    RETURN_IF_ERROR(base::MakePrivateFolder(path.parent_path()));
    written.push_back({path.string(), file.bytes});
  }
  return AsDiskFailure(base::WriteFilesAtomically(written, {.owner_only = true}));
}

absl::StatusOr<base::SharedBytes> DiskResultStore::OpenFile(const std::string& name, uint64_t limit) {
  const std::string path = fs::path(folder_) / name;
  ASSIGN_OR_RETURN(base::FileDescriptor file, OpenResult(path));
  ASSIGN_OR_RETURN(const FileVersion version, VersionOf(file));
  if (version.bytes > limit) return absl::ResourceExhaustedError("the image's file is larger than any image may be");
  if (highest_descriptor_ && file.get() > highest_descriptor_()) file = base::FileDescriptor();
  return std::make_shared<OpenedResult>(path, version, std::move(file));
}

absl::Status DiskResultStore::Remove(const std::string& name) {
  std::error_code error;
  fs::remove(fs::path(folder_) / name, error);
  return error ? absl::UnavailableError(absl::StrCat(kUnavailable, error.message())) : absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> DiskResultStore::List() {
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

}  // namespace tessera::server
