// SocketFolder is the private folder of a worker's socket, which is removed no matter how the worker ends.
#pragma once

#include <signal.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace tessera::control {

// Creates the folder of a socket with mode 0700 (it must not exist yet); the destructor removes the folder and the
// socket. Thread-safe.
class SocketFolder {
 public:
  static absl::StatusOr<std::unique_ptr<SocketFolder>> Create(const std::string& socket_path);
  ~SocketFolder() { Remove(); }

  void Remove() const;

 private:
  SocketFolder(std::string socket_path, std::string folder)
      : socket_path_(std::move(socket_path)), folder_(std::move(folder)) {}

  const std::string socket_path_;
  const std::string folder_;
};

// Blocks SIGTERM and SIGHUP in the calling thread and in those that it starts later, and returns the blocked signals.
// Call it before the folder is created, so that these signals cannot leave it on the disk.
sigset_t BlockTermination();

// During its lifetime, a blocked signal removes the folder before it ends the process.
class TerminationThread {
 public:
  TerminationThread(const SocketFolder& folder, const sigset_t& blocked);  // the folder must outlive this
  ~TerminationThread();

 private:
  void Run(const SocketFolder& folder);

  const int stop_;
  const sigset_t signals_;
  int termination_ = -1;
  std::thread thread_;
};

}  // namespace tessera::control
