#include "server/backup/archive_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/files/file_descriptor.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "server/backup/tar.h"

namespace tessera::server {
namespace {

constexpr size_t kReadAtOnce = size_t{1} << 20;

absl::Status CannotRead(const std::string& name, int error) {
  const std::string text = absl::StrCat("cannot read \"", name, "\": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
}

}  // namespace

absl::Status ArchiveWriter::AddFile(const std::string& name, const std::string& path) {
  RETURN_IF_ERROR(CheckBackedUpName(name));
  const base::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid()) return CannotRead(name, errno);
  struct stat about = {};
  if (::fstat(file.get(), &about) != 0) return CannotRead(name, errno);
  if (!S_ISREG(about.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("\"", name, "\" is not a regular file"));
  }
  BackedUpFile added = {.bytes = static_cast<uint64_t>(about.st_size)};
  ASSIGN_OR_RETURN(const std::string header,
                   TarHeader({.name = name, .bytes = added.bytes, .modified_s = about.st_mtim.tv_sec}));
  RETURN_IF_ERROR(Write(header));
  base::Sha256 digest;
  std::string piece;
  for (uint64_t left = added.bytes; left > 0; left -= piece.size()) {
    piece.resize(std::min<uint64_t>(left, kReadAtOnce));
    const ssize_t read = ::read(file.get(), piece.data(), piece.size());
    if (read < 0 && errno != EINTR) return absl::UnavailableError(CannotRead(name, errno).message());
    if (read == 0) return absl::DataLossError(absl::StrCat("\"", name, "\" became shorter while it was read"));
    piece.resize(static_cast<size_t>(std::max<ssize_t>(read, 0)));
    digest.Update(piece);
    RETURN_IF_ERROR(Write(piece));
  }
  RETURN_IF_ERROR(Write(std::string(TarPadding(added.bytes), '\0')));
  added.sha256 = digest.Finish();
  manifest_.files[name] = added;
  return absl::OkStatus();
}

absl::Status ArchiveWriter::Finish() {
  const std::string text = ManifestText(manifest_);
  if (text.size() > kMaxManifestBytes) return absl::ResourceExhaustedError("a backup cannot have that many files");
  ASSIGN_OR_RETURN(const std::string header,
                   TarHeader({.name = kManifestName, .bytes = text.size(), .modified_s = manifest_.created_s}));
  RETURN_IF_ERROR(Write(header));
  RETURN_IF_ERROR(Write(text));
  return Write(std::string(TarPadding(text.size()) + 2 * kTarBlock, '\0'));
}

}  // namespace tessera::server
