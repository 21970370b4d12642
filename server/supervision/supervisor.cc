#include "server/supervision/supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"

namespace tessera::server {
namespace {

// "PID DESCRIPTOR" in the child's environment: the supervisor, and the file with its message.
constexpr char kVariable[] = "TESSERA_SUPERVISOR";
constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(1);
constexpr absl::Duration kLongLife = absl::Seconds(10);
constexpr int kMostSilentCrashes = 5;

absl::Status SystemError(absl::string_view what, int error) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(error)));
}

absl::StatusOr<std::vector<std::string>> OwnArguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string word; std::getline(file, word, '\0');) arguments.push_back(word);
  if (arguments.empty()) return absl::InternalError("the arguments of this process cannot be read");
  return arguments;
}

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Returns an unnamed file with the text.
absl::StatusOr<int> FileWith(const std::string& text) {
  const int file = memfd_create("tessera-message", MFD_CLOEXEC);
  if (file < 0) return SystemError("the server cannot be started", errno);
  for (size_t written = 0; written < text.size();) {
    const ssize_t more = write(file, text.data() + written, text.size() - written);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) {
      const int error = errno;
      close(file);
      return SystemError("the server cannot be started", error);
    }
    written += static_cast<size_t>(more);
  }
  return file;
}

// Reads a file from its beginning; returns nullopt if it cannot be read.
std::optional<std::string> TextOf(int file) {
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t got = pread(file, buffer, sizeof(buffer), static_cast<off_t>(text.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
  }
}

// Starts this program with the same arguments and with `output` as its standard output.
absl::StatusOr<pid_t> Spawn(const std::string& message, int output) {
  ASSIGN_OR_RETURN(std::vector<std::string> arguments, OwnArguments());
  ASSIGN_OR_RETURN(const int file, FileWith(message));
  const absl::Cleanup close_file = [&] { close(file); };
  std::vector<std::string> environment = {absl::StrCat(kVariable, "=", getpid(), " ", file)};
  for (char** variable = environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);

  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  const absl::Cleanup destroy = [&] {
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
  };
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGHUP);  // it would end a child that does not handle it yet
  posix_spawnattr_setsigmask(&attributes, &blocked);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, file, file);  // only keeps it open
  pid_t child = 0;
  const int error = posix_spawn(&child, "/proc/self/exe", &files, &attributes, Pointers(arguments).data(),
                                Pointers(environment).data());
  if (error != 0) return SystemError("the server cannot be started", error);
  return child;
}

}  // namespace

absl::Duration PauseBeforeRestart(int crashes) {
  if (crashes <= 1) return absl::ZeroDuration();
  return std::min(kFirstPause * (int64_t{1} << std::min(crashes - 2, 10)), kLongestPause);
}

void Supervisor::Stop(int signal) {
  const std::lock_guard lock(mutex_);
  stop_ = signal;
  if (child_ != 0) kill(child_, signal);
}

void Supervisor::HangUp() {
  const std::lock_guard lock(mutex_);
  hang_up_ = child_ == 0;
  if (child_ != 0) kill(child_, SIGHUP);
}

absl::StatusOr<int> Supervisor::RunOnce() {
  int output[2];
  if (pipe2(output, O_CLOEXEC) != 0) return SystemError("the server cannot be started", errno);
  const absl::Cleanup close_output = [&] { close(output[0]); };
  {
    const std::lock_guard lock(mutex_);
    absl::StatusOr<pid_t> child = Spawn(options_.message(), output[1]);
    close(output[1]);
    if (!child.ok()) return child.status();
    child_ = *child;
    if (stop_ != 0) kill(child_, stop_);
    if (std::exchange(hang_up_, false)) kill(child_, SIGHUP);
  }
  spoke_ = false;
  // Only the child has the other end, so reading ends with the child.
  std::string line;
  char buffer[4096];
  for (ssize_t got; (got = read(output[0], buffer, sizeof(buffer))) != 0;) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;
    for (const char c : absl::string_view(buffer, got)) {
      if (c != '\n') {
        line.push_back(c);
        continue;
      }
      spoke_ = true;
      options_.said(std::exchange(line, ""));
    }
  }
  siginfo_t ended;
  while (waitid(P_PID, child_, &ended, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  const std::lock_guard lock(mutex_);
  int status = 0;
  waitpid(child_, &status, 0);
  child_ = 0;
  return status;
}

absl::StatusOr<int> Supervisor::Run() {
  bool has_served = false;
  int crashes = 0;  // consecutive ones, each soon after its start
  int silent = 0;   // consecutive ones that had printed nothing
  while (true) {
    const absl::Duration start = base::SteadyNow();
    absl::StatusOr<int> status = RunOnce();
    if (!status.ok()) return status;
    if (WIFEXITED(*status)) return WEXITSTATUS(*status);
    const int signal = WTERMSIG(*status);
    const std::string what = absl::StrCat("the server was ended by signal ", signal, " (", strsignal(signal), ")");
    crashes = base::SteadyNow() - start < kLongLife ? crashes + 1 : 1;
    {
      const std::lock_guard lock(mutex_);
      if (stop_ != 0) return absl::InternalError(what);
    }
    has_served = has_served || spoke_;
    silent = spoke_ ? 0 : silent + 1;
    if (!has_served || silent > kMostSilentCrashes) {
      return absl::InternalError(absl::StrCat(what, " before it served"));
    }
    const absl::Duration pause = PauseBeforeRestart(crashes);
    const std::string when = pause > absl::ZeroDuration() ? absl::StrCat(" in ", absl::FormatDuration(pause)) : "";
    options_.log({base::LogLevel::kError, absl::StrCat(what, "; restarting it", when), {{"signal", signal}}});
    absl::SleepFor(pause);
  }
}

absl::StatusOr<std::optional<std::string>> MessageOfSupervisor() {
  const char* variable = std::getenv(kVariable);
  if (variable == nullptr) return std::nullopt;
  const std::pair<std::string, std::string> parts = absl::StrSplit(variable, absl::MaxSplits(' ', 1));
  unsetenv(kVariable);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pid_t supervisor = 0;
  if (!absl::SimpleAtoi(parts.first, &supervisor) || supervisor != getppid()) {
    return absl::UnavailableError("the supervisor has ended");
  }
  int file = -1;
  std::optional<std::string> text;
  if (absl::SimpleAtoi(parts.second, &file)) text = TextOf(file);
  if (!text.has_value()) return absl::InternalError("the supervisor's message cannot be read");
  close(file);
  return text;
}

}  // namespace tessera::server
