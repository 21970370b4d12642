#include "base/process_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/private_files.h"
#include "base/status_macros.h"
#include "base/steady_time.h"

namespace tessera::base {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(20);

}  // namespace

absl::StatusOr<ProcessLock> ProcessLock::Take(const std::string& path, absl::Duration timeout) {
  RETURN_IF_ERROR(MakePrivateFile(path));
  ProcessLock lock;
  lock.file_ = FileDescriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!lock.file_.valid()) {
    return absl::UnavailableError(absl::StrCat("cannot open \"", path, "\": ", std::strerror(errno)));
  }
  const absl::Duration deadline = SteadyNow() + timeout;
  while (::flock(lock.file_.get(), LOCK_EX | LOCK_NB) != 0) {
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
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file.valid() && ::flock(file.get(), LOCK_SH | LOCK_NB) != 0;
}

}  // namespace tessera::base
