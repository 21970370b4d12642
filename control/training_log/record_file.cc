#include "control/training_log/record_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera::control {
namespace {

absl::Status Failure(const std::string& path, int error) {
  const std::string message = absl::StrCat("cannot write \"", path, "\": ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT || error == EFBIG ? absl::ResourceExhaustedError(message)
                                                              : absl::UnavailableError(message);
}

}  // namespace

absl::StatusOr<RecordFile> RecordFile::Open(const std::string& path) {
  base::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  struct stat about = {};
  if (!file.valid() || ::fstat(file.get(), &about) != 0) return Failure(path, errno);
  return RecordFile(std::move(file), path, about.st_size);
}

absl::Status RecordFile::Append(std::string_view record) {
  for (std::string_view rest = record; !rest.empty();) {
    const ssize_t written = ::write(file_.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      return Failure(path_, ::ftruncate(file_.get(), bytes_) == 0 ? error : errno);
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
  bytes_ += static_cast<int64_t>(record.size());
  return absl::OkStatus();
}

}  // namespace tessera::control
