#include "server/workers/worker_identity.h"

#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/files/file.h"
#include "base/files/file_descriptor.h"
#include "base/macros/status_macros.h"

namespace tessera::server {
namespace {

constexpr int kStartTimeField = 22;  // of /proc/PID/stat, from 1; proc(5)
constexpr int kFieldAfterName = 3;
constexpr size_t kMaxFileBytes = 256 << 10;  // a command line may be long

std::string ReadOf(pid_t pid, const char* name) {
  return base::ReadSmallFile(absl::StrCat("/proc/", pid, "/", name), kMaxFileBytes).value_or("");
}

absl::StatusOr<uint64_t> StartTime(pid_t pid) {
  const absl::StatusOr<std::string> field = ProcessStat(pid, kStartTimeField);
  uint64_t time = 0;
  if (field.ok() && absl::SimpleAtoi(*field, &time)) return time;
  return absl::NotFoundError(absl::StrCat("there is no process ", pid));
}

bool Runs(pid_t pid, const std::string& executable) {
  char target[PATH_MAX], wanted[PATH_MAX];
  const ssize_t length = readlink(absl::StrCat("/proc/", pid, "/exe").c_str(), target, sizeof(target));
  return length > 0 && realpath(executable.c_str(), wanted) != nullptr &&
         absl::string_view(target, static_cast<size_t>(length)) == wanted;
}

bool ListensOn(pid_t pid, const std::string& socket) {
  const std::vector<std::string> words = absl::StrSplit(ReadOf(pid, "cmdline"), '\0');
  return words.size() > 2 && words[1] == "--socket" && words[2] == socket;
}

bool IsOurs(pid_t pid) {
  struct stat about;
  return stat(absl::StrCat("/proc/", pid).c_str(), &about) == 0 && about.st_uid == geteuid();
}

}  // namespace

absl::StatusOr<std::string> ProcessStat(pid_t pid, int number) {
  const std::string stat = ReadOf(pid, "stat");
  // The name is in parentheses and may hold any character.
  const size_t name_end = stat.rfind(") ");
  if (name_end != std::string::npos) {
    const std::vector<std::string> fields = absl::StrSplit(stat.substr(name_end + 2), ' ');
    const auto index = static_cast<size_t>(number - kFieldAfterName);
    if (index < fields.size()) return fields[index];
  }
  return absl::NotFoundError(absl::StrCat("there is no process ", pid));
}

absl::StatusOr<WorkerIdentity> IdentityOf(pid_t pid, const std::string& socket) {
  ASSIGN_OR_RETURN(const uint64_t time, StartTime(pid));
  return WorkerIdentity{.pid = pid, .start_time = time, .socket = socket};
}

absl::StatusOr<int> OpenWorker(const WorkerIdentity& identity, const std::string& executable) {
  absl::Status none = absl::NotFoundError(absl::StrCat("process ", identity.pid, " is not that worker"));
  if (identity.pid <= 1) return none;
  base::FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, identity.pid, 0)));
  if (!process.valid()) return none;
  const absl::StatusOr<uint64_t> time = StartTime(identity.pid);
  const bool same = time.ok() && *time == identity.start_time && IsOurs(identity.pid) &&
                    Runs(identity.pid, executable) && ListensOn(identity.pid, identity.socket);
  // While the descriptor's process runs, no other process has its ID, so what was read belongs to it.
  pollfd ended = {process.get(), POLLIN, 0};
  if (same && poll(&ended, 1, 0) == 0) return process.Release();
  return none;
}

bool IsWorker(const WorkerIdentity& identity, const std::string& executable) {
  const absl::StatusOr<int> process = OpenWorker(identity, executable);
  if (process.ok()) close(*process);
  return process.ok();
}

}  // namespace tessera::server
