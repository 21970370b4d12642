#include "client/cli/serve/server_signals.h"

#include <signal.h>

namespace tessera::client {

void IgnoreOtherSignals() {
  for (const int number : {SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGPOLL, SIGPWR, SIGSTKFLT, SIGPIPE}) {
    signal(number, SIG_IGN);
  }
  for (int number = SIGRTMIN; number <= SIGRTMAX; ++number) signal(number, SIG_IGN);
}

ServerSignals::ServerSignals(Interrupts& interrupts)
    : interrupts_(interrupts), hang_ups_(interrupts, [this] {
        const std::lock_guard lock(mutex_);
        reload_ = true;
        arrived_.notify_all();
      }) {}

ServerSignals::Signal ServerSignals::Wait() {
  const Interrupts::Reaction reaction(interrupts_, [this] {
    const std::lock_guard lock(mutex_);
    end_ = true;
    arrived_.notify_all();
  });
  std::unique_lock lock(mutex_);
  arrived_.wait(lock, [this] { return end_ || reload_; });
  if (end_) return Signal::kEnd;
  reload_ = false;
  return Signal::kReload;
}

}  // namespace tessera::client
