// Interrupts handles Ctrl-C and similar signals: the first asks the command to stop, the second ends the process at
// once.
#pragma once

#include <signal.h>

#include <functional>
#include <mutex>
#include <thread>

namespace tessera::client {

// Create it before any other thread: it blocks SIGINT, SIGTERM and SIGHUP and waits for them in a separate thread.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();

  bool requested() const;

  // While it exists, SIGHUP does not interrupt the command but calls `react` on another thread, at once if it has
  // already arrived. At most one may exist.
  class HangUps {
   public:
    HangUps(Interrupts& interrupts, std::function<void()> react);
    ~HangUps();

   private:
    Interrupts& interrupts_;
  };

  // While a Reaction exists, the first interruption calls `react` on another thread, at once if it has already arrived.
  // At most one may exist.
  class Reaction {
   public:
    Reaction(Interrupts& interrupts, std::function<void()> react);
    ~Reaction();

   private:
    Interrupts& interrupts_;
  };

 private:
  void Run();

  const int stop_;
  sigset_t signals_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  bool requested_ = false;
  bool hung_up_ = false;  // only SIGHUP has requested the stop
  std::function<void()> react_, hang_up_;
  std::thread thread_;
};

}  // namespace tessera::client
