// ChildProcess runs a program under test and provides its output so far, its exit code, and the processes that it left
// running. A wait fails the test after five minutes in which nothing happens.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// A user without processes, for tests that run as root.
inline constexpr uid_t kOtherUser = 54321;

// Returns the number of processes of this user that count for ChildOptions::processes; 0 for root.
size_t ProcessesInUse();

struct ChildOptions {
  std::vector<std::string> arguments;              // begins with the program
  std::string folder;                              // working directory
  std::map<std::string, std::string> environment;  // the complete environment
  size_t largest_file = 0;                         // limit in bytes of a file it writes; 0: none
  size_t open_files = 0;                           // limit of open files, like `ulimit -n`; 0: that of this process
  // Limit of processes and threads of the user, like `ulimit -u`; 0: that of this process. Root is exempt from the
  // limit, so a child of root runs as kOtherUser, which becomes the owner of `folder` and its contents.
  size_t processes = 0;
  int errors = -1;             // its standard error; -1: a file that errors() reads
  int network_namespace = -1;  // descriptor of its network namespace; -1: that of this thread
};

class ChildProcess {
 public:
  explicit ChildProcess(const ChildOptions& options);
  ~ChildProcess();  // kills the process

  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Reads until standard output contains `text`. False if it ends first.
  bool WaitForOutput(const std::string& text);

  // Waits for the end of the process. Returns its exit code, or 1000 + the signal that killed it. May be called
  // repeatedly.
  int Wait();

  void Signal(int signal);  // does nothing after Wait, because the id may be reused

  pid_t pid() const { return pid_; }
  const std::string& output() const { return output_; }  // read so far
  std::string errors() const;                            // standard error so far

 private:
  pid_t pid_ = -1;
  int output_pipe_ = -1;
  int errors_file_ = -1;     // an unnamed file
  std::optional<int> code_;  // once it has ended
  std::string output_;
};

// Returns the processes that run `executable` with `variable`=`value` in their environment.
std::vector<pid_t> ProcessesWith(const std::string& executable, const std::string& variable, const std::string& value);

// Waits until a process, which need not be a child, has ended.
bool WaitUntilGone(pid_t pid);

// Stops a process and waits until all of its threads have stopped, or it has ended. The wait matters because signals
// are asynchronous, and the fate of a process whose parent dies depends on whether it is stopped by then.
void StopProcess(pid_t pid);

}  // namespace tessera
