// ServeControlChannel is the worker's end of the control channel: it passes the commands that arrive on a Unix socket
// to one CommandHandler.
//
// There is one controller at a time. The thread that called ServeControlChannel executes the commands strictly in the
// order of their sequence numbers. Another thread reads the stream ahead into a bounded queue, and handlers that can
// finish steps or decode concurrently with later commands (control/protocol/command_handler.h) do so on one more thread
// each. This is the one place where exceptions from the handler are caught.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tessera::control {

class CommandHandler;

struct ChannelOptions {
  // Path of the socket. Its folder must not exist: it is created here with mode 0700. Both are removed at the end.
  std::string socket_path;
  // How long the worker outlives its controller, waiting for another one that uses the loaded model. Commands that the
  // old controller sent before it disconnected are executed and its jobs are ended, so that the ranks of a group stay
  // consistent; the process exits if that takes longer than this. SIGPIPE is ignored and, from the first controller on,
  // so is the end of the parent process. Zero: socket and folder are removed as soon as the one controller has
  // connected, and the process exits as soon as its stream ends, even in the middle of a command.
  absl::Duration orphan_grace_period = absl::ZeroDuration();
  // How long to wait for the first controller.
  absl::Duration first_controller = absl::Seconds(30);
  // Whether this is rank 0 of its group, which replies with pixels and tensors.
  bool sends_results = true;
};

// Call it before other threads are started: it blocks SIGTERM so that a dedicated thread can remove the socket before
// the signal ends the process. Returns OK after Shutdown and after the last controller has disconnected,
// DEADLINE_EXCEEDED if no controller connected, and another error if the socket cannot be created.
absl::Status ServeControlChannel(CommandHandler& handler, const ChannelOptions& options);

}  // namespace tessera::control
