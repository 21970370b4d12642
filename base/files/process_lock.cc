#include "base/files/process_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/files/private_files.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"

namespace tessera::base {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(20);
constexpr size_t kMaxHolderBytes = 320;  // a host's name has up to 255

// Writes the holder's name, which other processes read from the file. If this fails, only messages lack the name.
void WriteHolder(const FileDescriptor& file) {
  char host[256] = "";
  if (gethostname(host, sizeof(host) - 1) != 0) return;
  const std::string holder = absl::StrCat("process ", getpid(), " on host ", host);
  if (ftruncate(file.get(), 0) != 0) return;
  if (pwrite(file.get(), holder.data(), holder.size(), 0) < 0) return;
}

std::string HolderOf(const FileDescriptor& file) {
  std::array<char, kMaxHolderBytes> bytes;
  const ssize_t size = pread(file.get(), bytes.data(), bytes.size(), 0);
  const std::string holder(bytes.data(), static_cast<size_t>(std::max<ssize_t>(size, 0)));
  const bool is_known = holder.starts_with("process ") && std::ranges::all_of(holder, absl::ascii_isprint);
  return is_known ? holder : "another process";
}

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
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("cannot lock \"", path, "\": ", std::strerror(errno)));
    }
    if (SteadyNow() >= deadline) {
      return absl::FailedPreconditionError(absl::StrCat(HolderOf(lock.file_), " is using it"));
    }
    absl::SleepFor(kPause);
  }
  WriteHolder(lock.file_);
  return lock;
}

bool ProcessLock::IsTaken(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file.valid() && ::flock(file.get(), LOCK_SH | LOCK_NB) != 0;
}

}  // namespace tessera::base
