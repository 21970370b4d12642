// ServerSignals receives the signals that ask a running server to end or to reload its configuration.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>

#include "client/cli/interrupts.h"

namespace tessera::client {

// Ignores, in this process and in the processes that it starts, all signals that have no meaning for a server.
void IgnoreOtherSignals();

// From its construction on, SIGHUP no longer ends the process; signals that arrive before Wait are not lost.
class ServerSignals {
 public:
  enum class Signal { kEnd, kReload };

  explicit ServerSignals(Interrupts& interrupts);

  // If both have arrived, the end takes precedence over the reload.
  Signal Wait();

 private:
  Interrupts& interrupts_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  // Guarded by mutex_.
  bool end_ = false, reload_ = false;
  const Interrupts::HangUps hang_ups_;
};

}  // namespace tessera::client
