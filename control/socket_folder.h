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

// Blocks SIGTERM and SIGHUP in the calling thread and in those that it starts later: call it before there is a folder
// that they would leave behind. What is blocked.
sigset_t BlockTermination();

// While it lives, the signals that are blocked remove the folder before they end the process.
class TerminationThread {
 public:
  TerminationThread(const SocketFolder& folder, const sigset_t& blocked);  // the folder outlives this
  ~TerminationThread();

 private:
  void Run(const SocketFolder& folder);

  const int stop_;
  const sigset_t signals_;
  int termination_ = -1;
  std::thread thread_;
};

}  // namespace tessera::control
