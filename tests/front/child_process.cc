#include "tests/front/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/threads/task_limits.h"
#include "tests/support/fault_runs.h"
#include "tests/support/wait_until.h"

namespace tessera {
namespace {

// How long a process may neither write nor end. Measuring a machine that is busy takes minutes, and long runs load
// models of which that takes minutes more.
int DeadlineMilliseconds() { return IsLongRun() ? 600'000 : 300'000; }

void GiveToOtherUser(const std::string& folder) {
  EXPECT_EQ(chown(folder.c_str(), kOtherUser, kOtherUser), 0);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    EXPECT_EQ(lchown(entry.path().c_str(), kOtherUser, kOtherUser), 0) << entry.path();
  }
}

bool Readable(int descriptor) {
  pollfd event = {descriptor, POLLIN, 0};
  return poll(&event, 1, DeadlineMilliseconds()) == 1;
}

int OpenProcess(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Checks every thread, because a process counts as stopped only when its last thread has stopped.
bool StandsStill(pid_t pid) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(absl::StrCat("/proc/", pid, "/task"), error), end; !error && it != end;
       it.increment(error)) {
    std::ifstream file(it->path() / "stat");
    std::string stat;
    // The state follows the name, which is in parentheses.
    const size_t name_end = std::getline(file, stat) ? stat.rfind(") ") : std::string::npos;
    if (name_end != std::string::npos && !absl::StrContains("TtZX", stat.substr(name_end + 2, 1))) return false;
  }
  return true;
}

}  // namespace

size_t ProcessesInUse() {
  for (const base::TaskLimit& limit : base::ReadTaskLimits()) {
    if (absl::StrContains(limit.name, "RLIMIT_NPROC")) return static_cast<size_t>(limit.used);
  }
  return 0;
}

ChildProcess::ChildProcess(const ChildOptions& options) {
  std::vector<std::string> arguments = options.arguments;
  std::vector<std::string> variables;
  for (const auto& [name, value] : options.environment) variables.push_back(name + "=" + value);
  const std::vector<char*> argument_pointers = Pointers(arguments), variable_pointers = Pointers(variables);
  if (options.processes > 0 && geteuid() == 0) GiveToOtherUser(options.folder);
  int pipe_ends[2];
  EXPECT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  errors_file_ = memfd_create("errors", MFD_CLOEXEC);
  pid_ = fork();
  if (pid_ == 0) {
    signal(SIGHUP, SIG_DFL);  // even if the tests run under nohup
    if (options.largest_file > 0) {
      const rlimit limit = {options.largest_file, options.largest_file};
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    if (options.open_files > 0) {
      const rlimit limit = {options.open_files, options.open_files};
      setrlimit(RLIMIT_NOFILE, &limit);
    }
    // The parent folders may be inaccessible to another user.
    const int program = open(argument_pointers[0], O_PATH | O_CLOEXEC);
    if (options.processes > 0) {
      const rlimit limit = {options.processes, options.processes};
      setrlimit(RLIMIT_NPROC, &limit);
      if (geteuid() == 0 && setuid(kOtherUser) != 0) _exit(125);
    }
    if (options.network_namespace >= 0 && setns(options.network_namespace, CLONE_NEWNET) != 0) _exit(125);
    dup2(pipe_ends[1], 1);
    dup2(options.errors < 0 ? errors_file_ : options.errors, 2);
    close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);  // sockets of a server in the test process
    if (chdir(options.folder.c_str()) == 0) {
      if (options.processes > 0) fexecve(program, argument_pointers.data(), variable_pointers.data());
      execve(argument_pointers[0], argument_pointers.data(), variable_pointers.data());
    }
    _exit(126);
  }
  close(pipe_ends[1]);
  output_pipe_ = pipe_ends[0];
}

ChildProcess::~ChildProcess() {
  if (!code_.has_value()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(output_pipe_);
  close(errors_file_);
}

bool ChildProcess::WaitForOutput(const std::string& text) {
  char buffer[4096];
  while (output_.find(text) == std::string::npos) {
    if (!Readable(output_pipe_)) {
      ADD_FAILURE() << "no '" << text << "' in time; so far: " << output_ << errors();
      return false;
    }
    const ssize_t got = read(output_pipe_, buffer, sizeof(buffer));
    if (got <= 0) return false;
    output_.append(buffer, got);
  }
  return true;
}

int ChildProcess::Wait() {
  if (code_.has_value()) return *code_;
  const int process = OpenProcess(pid_);
  // What the process wrote is read before its end counts. Processes that it left running may keep the pipe open.
  pollfd events[] = {{output_pipe_, POLLIN, 0}, {process, POLLIN, 0}};
  int ready = 0;
  while ((ready = poll(events, 2, DeadlineMilliseconds())) > 0) {
    if (events[0].revents != 0) {
      char buffer[4096];
      const ssize_t got = read(output_pipe_, buffer, sizeof(buffer));
      if (got > 0) {
        output_.append(buffer, got);
      } else {
        events[0].fd = -1;  // the pipe is closed
      }
    } else if (events[1].revents != 0) {
      break;
    }
  }
  close(process);
  if (ready != 1) {
    ADD_FAILURE() << "the process did not end in time; so far: " << output_ << errors();
    return -1;
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  code_ = WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
  return *code_;
}

void ChildProcess::Signal(int signal) {
  if (!code_.has_value()) kill(pid_, signal);
}

std::string ChildProcess::errors() const {
  std::string text(static_cast<size_t>(lseek(errors_file_, 0, SEEK_END)), '\0');
  const ssize_t got = pread(errors_file_, text.data(), text.size(), 0);
  text.resize(got > 0 ? got : 0);
  return text;
}

std::vector<pid_t> ProcessesWith(const std::string& executable, const std::string& variable, const std::string& value) {
  const std::string wanted = variable + "=" + value;
  std::vector<pid_t> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const pid_t pid = std::atoi(it->path().filename().c_str());
    if (pid <= 0 || std::filesystem::read_symlink(it->path() / "exe", error) != executable) {
      error.clear();
      continue;
    }
    std::ifstream file(it->path() / "environ", std::ios::binary);
    std::string entry;
    while (std::getline(file, entry, '\0')) {
      if (entry == wanted) found.push_back(pid);
    }
  }
  return found;
}

bool WaitUntilGone(pid_t pid) {
  const int process = OpenProcess(pid);
  if (process < 0) return true;
  const bool gone = Readable(process);
  close(process);
  return gone;
}

void StopProcess(pid_t pid) {
  kill(pid, SIGSTOP);
  WaitUntil(absl::StrCat("process ", pid, " stands still"), [&] { return StandsStill(pid); });
}

}  // namespace tessera
