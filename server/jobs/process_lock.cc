#include "server/jobs/process_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/private_files.h"
#include "base/steady_time.h"

namespace tessera {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(20);

}  // namespace

absl::StatusOr<ProcessLock> ProcessLock::Take(const std::string& path, absl::Duration patience) {
  if (absl::Status made = MakePrivateFile(path); !made.ok()) return made;
  ProcessLock lock;
  lock.file_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (lock.file_ < 0) {
    return absl::UnavailableError(absl::StrCat("cannot open \"", path, "\": ", std::strerror(errno)));
  }
  const absl::Duration deadline = SteadyNow() + patience;
  while (::flock(lock.file_, LOCK_EX | LOCK_NB) != 0) {
    if (SteadyNow() < deadline) {
      absl::SleepFor(kPause);
      continue;
    }
    return absl::FailedPreconditionError(
        "another process uses this job store; each server needs a data folder of its "
        "own");
  }
  return lock;
}

bool ProcessLock::IsTaken(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool taken = ::flock(file, LOCK_SH | LOCK_NB) != 0;
  ::close(file);
  return taken;
}

ProcessLock::ProcessLock(ProcessLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}

ProcessLock& ProcessLock::operator=(ProcessLock&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}

ProcessLock::~ProcessLock() {
  if (file_ >= 0) ::close(file_);
}

}  // namespace tessera
