// One worker process (one rank): started by exec, told to end when this process ends, never left behind. Or one that
// a process before this one started so that it outlives it, and that this one adopts.
//
// The worker runs in a process group of its own, so that a terminal's Ctrl-C does not reach it, without standard
// input, and with standard output and error captured. Start must be called from a thread that lives as long as the
// worker shall: the kernel ends the worker with the thread that started it, unless the worker has a grace period and
// has been connected to. The other methods are thread-safe.
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
  int inherited = -1;                  // a descriptor of ours that the worker gets as kInheritedDescriptor
  bool show_output = false;            // copy the worker's output to our standard error
  absl::Duration orphan_grace_period;  // how long it outlives this process's sudden end; zero: it ends with it
  std::string system_root;             // where /proc and /sys are; another one than the empty one is for tests
  std::string owner;                   // in the name of its socket's folder, for RemoveDesertedFolders; may be empty
};

// Removes the folders of sockets that workers of this owner have left, who were killed together with the process that
// had started them. `in_use` says of a socket that its worker may still be adopted: those, and where anybody listens or
// has put anything else, stay. No worker of this owner may be about to listen.
void RemoveDesertedFolders(const std::string& owner, absl::FunctionRef<bool(const std::string& socket)> in_use);

// $TESSERA_WORKER, or tessera-worker beside this executable.
std::string WorkerExecutable();

// What its process runs then: the program itself, or the one of an installed tree that it launches
// (cmake/Install.cmake).
std::string WorkerProgram();

// The file that this worker program opens for devices of CUDA, whether it is there or not.
std::string CudaPluginOf(const std::string& program);

// tessera-fake-worker beside this executable.
std::string FakeWorkerExecutable();

class WorkerProcess final : public RankProcess {
 public:
  static constexpr int kInheritedDescriptor = 3;

  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Start(const WorkerProcessOptions& options);
  // One that another process started; NOT_FOUND unless it runs and is that worker for certain: then the folder of its
  // socket is removed, if it is one and nobody listens there. Nothing is known of its
  // output, nor of how it ends, unless the kernel has killed a process for want of memory meanwhile.
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

  // SIGTERM, and SIGKILL for a worker that still runs after `timeout`. Returns when the process is gone.
  void End(absl::Duration timeout = absl::Seconds(2));

  // Opens what it has as kInheritedDescriptor; the caller owns that.
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
  const int64_t kills_at_start_;  // of any process, for want of memory

  std::mutex mutex_;
  bool killed_here_ = false;        // guarded by mutex_
  bool ended_ = false;              // guarded by mutex_
  std::optional<int> wait_status_;  // as of waitpid, once a child was reaped; guarded by mutex_

  std::mutex output_mutex_;
  std::condition_variable output_changed_;
  std::string last_output_;    // guarded by output_mutex_
  bool output_ended_ = false;  // guarded by output_mutex_

  std::thread reader_;
};

}  // namespace tessera::server
