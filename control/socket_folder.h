// The private folder of a worker's socket, and its removal however the worker ends.
#pragma once

#include <signal.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace tessera::control {

// Makes the folder of a socket with mode 0700 (it must not exist) and removes both when it goes. Thread-safe.
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

// While it lives, SIGTERM and SIGHUP remove the folder before they end the process. The signals are blocked in the
// calling thread and in those started from it later.
class TerminationThread {
 public:
  explicit TerminationThread(const SocketFolder& folder);  // the folder outlives this
  ~TerminationThread();

 private:
  void Run(const SocketFolder& folder);

  const int stop_;
  int termination_ = -1;
  sigset_t signals_;
  std::thread thread_;
};

}  // namespace tessera::control
