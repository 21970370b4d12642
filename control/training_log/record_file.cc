#include "control/training_log/record_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/files/atomic_file.h"

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
  if (const int error = base::WriteBytes(file_.get(), record); error != 0) {
    return Failure(path_, ::ftruncate(file_.get(), bytes_) == 0 ? error : errno);
  }
  bytes_ += static_cast<int64_t>(record.size());
  return absl::OkStatus();
}

}  // namespace tessera::control
