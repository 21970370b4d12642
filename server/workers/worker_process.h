// WorkerProcess is one worker process (one rank) on this host. It is either started by this process with exec, or
// adopted from an earlier process that started it with a grace period. Workers without a grace period end with this
// process.
//
// The worker runs in a separate process group, so that Ctrl-C in a terminal does not reach it, without standard input,
// and with standard output and error captured. Start must be called from a thread that lives as long as the worker: the
// kernel ends the worker with the thread that started it, unless the worker has a grace period and a connection was
// made. The other methods are thread-safe.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/workers/rank_process.h"
#include "server/workers/worker_identity.h"

namespace tessera::server {

struct WorkerProcessOptions {
  std::string executable;
  std::vector<std::string> arguments;  // after "--socket PATH"
  int inherited = -1;                  // descriptor of this process that becomes kInheritedDescriptor in the worker
  bool show_output = false;            // copy the output to the standard error of this process
  absl::Duration orphan_grace_period;  // how long it survives this process's sudden end; zero: it ends with it
  std::string system_root;             // root of /proc and /sys; tests set it
  std::string owner;                   // part of its socket folder's name, for RemoveDesertedFolders; may be empty
};

// Removes the socket folders left by workers of this owner that were killed together with the process that started
// them. Keeps folders for whose socket `in_use` returns true, because the worker may still be adopted, and folders in
// which a process listens or that contain other files. No worker of this owner may be starting.
void RemoveDesertedFolders(const std::string& owner, absl::FunctionRef<bool(const std::string& socket)> in_use);

// $TESSERA_WORKER, or tessera-worker in this executable's folder.
std::string WorkerExecutable();

// The program that the worker's process runs: WorkerExecutable itself, or the program of an installed tree that it
// launches (cmake/Install.cmake).
std::string WorkerProgram();

// The file that this worker program loads for CUDA devices. The file may not exist.
std::string CudaPluginOf(const std::string& program);

// tessera-fake-worker in this executable's folder.
std::string FakeWorkerExecutable();

class WorkerProcess final : public RankProcess {
 public:
  static constexpr int kInheritedDescriptor = 3;

  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Start(const WorkerProcessOptions& options);
  // Adopts a worker that another process started. If that worker is not certainly running, returns NOT_FOUND and
  // removes its socket folder unless a process listens there. The output and exit status of an adopted worker are
  // unknown, except that the kernel has killed a process because memory ran out.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Adopt(const WorkerIdentity& identity,
                                                              const std::string& system_root = "");
  ~WorkerProcess() override;  // ends the worker if it still runs

  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  absl::StatusOr<int> Connect(absl::Duration timeout) override;
  bool WaitForExit(absl::Duration timeout) override;
  std::string StateText() override;
  bool IsStopped() const override;
  std::string LastOutput() override;
  uint64_t PeakMemoryBytes() const override;
  void Kill() override;
  pid_t pid() const override { return pid_; }
  absl::StatusOr<WorkerIdentity> identity() const override;

  // Sends SIGTERM, and SIGKILL if the worker still runs after `timeout`. Returns when the process is gone.
  void End(absl::Duration timeout = absl::Seconds(2));

  // Opens the worker's kInheritedDescriptor; the caller owns the result.
  absl::StatusOr<int> OpenInherited() const;

 private:
  struct Handles {
    pid_t pid;
    int pid_file;
    int output;          // -1: of an adopted process
    std::string folder;  // of its socket
  };

  WorkerProcess(Handles handles, bool show_output, const std::string& system_root);

  void ReadOutput();
  void Signal(int signal);

  const pid_t pid_;
  const int pid_file_;  // becomes readable when the process ends
  const int output_;    // reading end of the worker's output; -1: of an adopted process
  const int stop_;      // eventfd that ends the reading thread
  const std::string folder_;
  const bool show_output_;
  const std::string system_root_;
  const int64_t kills_at_start_;  // out-of-memory kills of any process

  std::mutex mutex_;
  bool killed_here_ = false;        // guarded by mutex_
  bool ended_ = false;              // guarded by mutex_
  std::optional<int> wait_status_;  // from waitpid, after a child was reaped; guarded by mutex_

  std::mutex output_mutex_;
  std::condition_variable output_changed_;
  std::string last_output_;    // guarded by output_mutex_
  bool output_ended_ = false;  // guarded by output_mutex_

  std::thread reader_;
};

}  // namespace tessera::server
