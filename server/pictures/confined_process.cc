#include "server/pictures/confined_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"

namespace tessera::server {
namespace {

absl::Status NotStarted(int error) {
  return absl::UnavailableError(absl::StrCat("the picture decoder cannot be started: ", std::strerror(error)));
}

// Returns false at `deadline`.
bool PollUntil(int descriptor, short events, absl::Duration deadline) {
  pollfd event = {descriptor, events, 0};
  while (true) {
    const int64_t left = absl::ToInt64Milliseconds(absl::Ceil(deadline - base::SteadyNow(), absl::Milliseconds(1)));
    const int ready = poll(&event, 1, static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX)));
    if (ready > 0) return true;
    if (ready == 0 && left <= 0) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

// What posix_spawn does in the child, and with which signals.
class SpawnSettings {
 public:
  explicit SpawnSettings(int socket) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_adddup2(&actions_, socket, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, socket, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions_, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addclosefrom_np(&actions_, STDERR_FILENO + 1);
    posix_spawnattr_init(&attributes_);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    // A process group keeps a terminal's Ctrl-C away.
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }

  // Returns an error number, or 0.
  int Spawn(char* const* words, pid_t& pid) const {
    char* const no_environment[] = {nullptr};
    return posix_spawn(&pid, words[0], &actions_, &attributes_, words, no_environment);
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace

absl::StatusOr<ConfinedProcess> ConfinedProcess::Start(const std::vector<std::string>& command) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return NotStarted(errno);
  base::FileDescriptor ours(ends[0]), theirs(ends[1]);
  if (fcntl(ours.get(), F_SETFL, O_NONBLOCK) != 0) return NotStarted(errno);
  // A process may run without standard streams, so that `theirs` is one of the numbers that are replaced.
  const base::FileDescriptor above(fcntl(theirs.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!above.valid()) return NotStarted(errno);
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  pid_t pid = 0;
  if (const int error = SpawnSettings(above.get()).Spawn(words.data(), pid); error != 0) return NotStarted(error);
  return ConfinedProcess(pid, std::move(ours));
}

ConfinedProcess::ConfinedProcess(ConfinedProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), socket_(std::move(other.socket_)) {}

ConfinedProcess::~ConfinedProcess() { End(); }

absl::Status ConfinedProcess::Wait(short events, absl::Duration deadline) {
  if (PollUntil(socket_.get(), events, deadline)) return absl::OkStatus();
  return absl::DeadlineExceededError("the picture decoder did not answer in time");
}

absl::Status ConfinedProcess::Send(const void* from, size_t size, absl::Duration deadline) {
  for (size_t done = 0; done < size;) {
    const ssize_t put = send(socket_.get(), static_cast<const char*>(from) + done, size - done, MSG_NOSIGNAL);
    if (put > 0) {
      done += static_cast<size_t>(put);
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(Wait(POLLOUT, deadline));
    } else if (errno != EINTR) {
      return absl::AbortedError("the picture decoder ended early");
    }
  }
  return absl::OkStatus();
}

absl::Status ConfinedProcess::Receive(void* to, size_t size, absl::Duration deadline) {
  for (size_t done = 0; done < size;) {
    const ssize_t got = recv(socket_.get(), static_cast<char*>(to) + done, size - done, 0);
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (got < 0 && errno == EAGAIN) {
      RETURN_IF_ERROR(Wait(POLLIN, deadline));
    } else if (got == 0 || errno != EINTR) {
      return absl::AbortedError("the picture decoder ended early");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ConfinedProcess::EndsWell(absl::Duration deadline) {
  char more = 0;
  const absl::Status rest = Receive(&more, 1, deadline);
  if (absl::IsDeadlineExceeded(rest)) return rest;
  if (!absl::IsAborted(rest)) return false;
  const base::FileDescriptor exited(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  if (!exited.valid() || !PollUntil(exited.get(), POLLIN, deadline)) return false;
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

absl::Status ConfinedProcess::CheckConfined() const {
  std::ifstream file(absl::StrCat("/proc/", pid_, "/status"));
  int filter = 0, no_new_privileges = 0;
  constexpr int kFilterMode = 2;
  for (std::string line; std::getline(file, line);) {
    if (line == absl::StrCat("Seccomp:\t", kFilterMode)) ++filter;
    if (line == "NoNewPrivs:\t1") ++no_new_privileges;
  }
  if (filter == 1 && no_new_privileges == 1) return absl::OkStatus();
  return absl::FailedPreconditionError("the kernel does not report a system call filter for it");
}

int ConfinedProcess::End() {
  if (pid_ == 0) return 0;
  kill(pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

}  // namespace tessera::server
