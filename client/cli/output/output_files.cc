#include "client/cli/output/output_files.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/files/atomic_file.h"
#include "base/files/private_files.h"
#include "base/macros/status_macros.h"
#include "server/image/image_file.h"

namespace tessera::client {
namespace {

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string NearestThatExists(std::filesystem::path folder) {
  std::error_code error;
  while (!std::filesystem::exists(std::filesystem::symlink_status(folder, error))) {
    if (!folder.has_parent_path()) return ".";
    folder = folder.parent_path();
  }
  return folder.string();
}

}  // namespace

absl::StatusOr<OutputFiles> OutputFiles::Create(const std::string& pattern, bool overwrite) {
  ASSIGN_OR_RETURN(server::ImageFormat format, server::FormatFromPath(pattern));
  RETURN_IF_ERROR(server::ExpandPattern(pattern, {}).status());
  return OutputFiles(pattern, format, overwrite);
}

absl::StatusOr<std::string> OutputFiles::NameFor(const server::NameValues& values) const {
  absl::StatusOr<std::string> name = server::ExpandPattern(pattern_, values);
  if (!name.ok() || overwrite_) return name;
  return server::NextFreeName(*name);
}

absl::Status OutputFiles::CheckFolder(const std::string& path) {
  const std::string folder = NearestThatExists(FolderOf(path));
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return absl::NotFoundError(
        absl::StrCat("output folder '", folder, "' is not a folder; it must be one that can be written or made"));
  }
  // Permission bits do not reveal read-only file systems; creating a file does.
  std::string probe = absl::StrCat(folder, "/.tessera-probe-XXXXXX");
  const int file = mkostemp(probe.data(), 0);
  if (file < 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("output folder '", folder, "' cannot be written: ", std::strerror(errno)));
  }
  unlink(probe.c_str());
  close(file);
  return absl::OkStatus();
}

absl::StatusOr<OutputFiles::Written> OutputFiles::Write(const std::string& path, const control::Frames& image,
                                                        const std::string& parameters) const {
  ASSIGN_OR_RETURN(std::string bytes, server::EncodeImage(image, format_, {.parameters = parameters}));
  return WriteEncoded(path, bytes);
}

absl::StatusOr<OutputFiles::Written> OutputFiles::WriteEncoded(const std::string& path,
                                                               const std::string& bytes) const {
  RETURN_IF_ERROR(base::MakeFolder(FolderOf(path)));
  std::string target = path;
  absl::Status status = base::WriteFileAtomically(target, bytes, {.overwrite = overwrite_});
  while (status.code() == absl::StatusCode::kAlreadyExists) {
    target = server::NextFreeName(path);
    status = base::WriteFileAtomically(target, bytes, {.overwrite = false});
  }
  if (!status.ok()) return status;
  return Written{.path = target, .bytes = bytes.size()};
}

PreviewFile::PreviewFile(const std::string& image_path)
    : path_(std::filesystem::path(image_path).replace_extension(".preview.png").string()) {}

PreviewFile::~PreviewFile() {
  if (written_) unlink(path_.c_str());
}

absl::Status PreviewFile::Write(const control::Frames& image) {
  ASSIGN_OR_RETURN(std::string bytes, server::EncodeImage(image, server::ImageFormat::kPng, {}));
  RETURN_IF_ERROR(base::MakeFolder(FolderOf(path_)));
  absl::Status status = base::WriteFileAtomically(path_, bytes, {.overwrite = true});
  written_ = written_ || status.ok();
  return status;
}

}  // namespace tessera::client
