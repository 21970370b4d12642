// The worker's end of the control channel: a Unix socket whose commands feed one CommandHandler.
//
// One controller at a time. Commands are executed strictly in the order of their sequence numbers on the thread that
// called ServeControlChannel, but for the decoding of handlers that can do that beside (commands.h), which has a thread
// of its own; another thread reads the stream ahead into a bounded queue. This is the one place where exceptions from
// the handler are caught.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "control/command_handler.h"

namespace tessera::control {

struct ChannelOptions {
  // The socket. Its folder must not exist: it is created here with mode 0700, and both are removed at the end.
  std::string socket_path;
  // How long the worker outlives its controller, and waits for another one that wants what is loaded. Whatever a
  // controller sent before it went is carried out and its jobs are ended, so that the ranks of a group stay alike; the
  // process ends if that takes longer than this. SIGPIPE is ignored, and from the first controller on the end of the
  // parent process. Zero: socket and folder are removed as soon as the one controller has connected, and the process
  // ends, even in the middle of a command, as soon as its stream does.
  absl::Duration orphan_grace_period = absl::ZeroDuration();
  // How long to wait for the first controller.
  absl::Duration first_controller = absl::Seconds(30);
  // Rank 0 of its group: the one that answers with pixels and tensors.
  bool sends_results = true;
};

// Call it before other threads are started: it blocks SIGTERM, so that a thread of its own can remove the socket
// before the process ends of it. Returns OK after Shutdown and after the last controller has gone;
// DEADLINE_EXCEEDED when no controller came; an error when the socket cannot be made.
absl::Status ServeControlChannel(CommandHandler& handler, const ChannelOptions& options);

}  // namespace tessera::control
