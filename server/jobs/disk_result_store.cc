#include "server/jobs/disk_result_store.h"

#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/atomic_file.h"
#include "base/private_files.h"
#include "base/status_macros.h"

namespace tessera::server {
namespace {

namespace fs = std::filesystem;

constexpr char kUnavailable[] = "the disk of the results reports an error: ";

}  // namespace

absl::Status AsDiskFailure(const absl::Status& status) {
  if (status.ok() || absl::IsResourceExhausted(status)) return status;
  return absl::UnavailableError(status.message());
}

DiskResultStore::DiskResultStore(std::string folder) : folder_(std::move(folder)) {}

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

absl::StatusOr<std::string> DiskResultStore::Read(const std::string& name, uint64_t limit) {
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
