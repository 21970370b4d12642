// What the signals tell a server that runs: to end, or to read its configuration again.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>

#include "client/cli/session/interrupts.h"

namespace tessera::client {

// From now on, and in what this process starts, signals that nobody has given a meaning do nothing.
void IgnoreOtherSignals();

// From its construction on SIGHUP ends nothing; what comes before Wait is not lost.
class ServerSignals {
 public:
  enum class Signal { kEnd, kReload };

  explicit ServerSignals(Interrupts& interrupts);

  // The end goes before a reload that has come as well.
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
