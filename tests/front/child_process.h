// A program under test as a child process: its output as it comes, its end, and what it left running. Every wait has a
// deadline of a minute and fails the test when that passes.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// Who has no processes, for tests that run as root.
inline constexpr uid_t kOtherUser = 54321;

// Those that count for ChildOptions::processes before it starts: of this process's user, unless that is root.
size_t ProcessesInUse();

struct ChildOptions {
  std::vector<std::string> arguments;              // the program first
  std::string folder;                              // where it runs
  std::map<std::string, std::string> environment;  // all of it
  size_t largest_file = 0;                         // bytes it may write to one file; 0: any number
  size_t open_files = 0;                           // that it may have, as `ulimit -n` says; 0: as many as this process
  // Processes and threads that its user may have, as `ulimit -u` says; 0: as many as this one. Root, for whom there is
  // no such limit, becomes kOtherUser, to whom `folder` and what is in it is given.
  size_t processes = 0;
  int errors = -1;             // its standard error; -1: a file that errors() reads
  int network_namespace = -1;  // descriptor of the one that it runs in; -1: this thread's
};

class ChildProcess {
 public:
  explicit ChildProcess(const ChildOptions& options);
  ~ChildProcess();  // kills it

  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Reads until standard output holds `text`. False at its end.
  bool WaitForOutput(const std::string& text);

  // Until it has ended: its exit code, or 1000 + the signal that killed it; the same whenever it is asked again.
  int Wait();

  void Signal(int signal);  // nothing after Wait: another process may have its id

  pid_t pid() const { return pid_; }
  const std::string& output() const { return output_; }  // read so far
  std::string errors() const;                            // standard error so far

 private:
  pid_t pid_ = -1;
  int output_pipe_ = -1;
  int errors_file_ = -1;     // without a name
  std::optional<int> code_;  // of its end
  std::string output_;
};

// The processes that run `executable` with `variable`=`value` in their environment.
std::vector<pid_t> ProcessesWith(const std::string& executable, const std::string& variable, const std::string& value);

// Waits until a process that need not be a child has ended.
bool WaitUntilGone(pid_t pid);

// Stops a process and waits until it stands still, or has ended: a signal takes its time, and what becomes of a process
// whose parent dies depends on whether it has stopped by then.
void StopProcess(pid_t pid);

}  // namespace tessera
