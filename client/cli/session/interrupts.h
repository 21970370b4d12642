// Ctrl-C and its relatives: the first asks the command to stop, the second ends the process at once.
#pragma once

#include <signal.h>

#include <functional>
#include <mutex>
#include <thread>

namespace tessera::client {

// Made before any other thread: it blocks SIGINT, SIGTERM and SIGHUP and waits for them in a thread of its own.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();

  bool requested() const;

  // While it lives, SIGHUP is no interruption but calls `react` on another thread; at once if it has come already. One
  // at a time.
  class HangUps {
   public:
    HangUps(Interrupts& interrupts, std::function<void()> react);
    ~HangUps();

   private:
    Interrupts& interrupts_;
  };

  // While a Reaction lives, the first interruption calls `react` on another thread; at once if it has come already.
  // One at a time.
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
  bool hung_up_ = false;  // which is all that has requested it
  std::function<void()> react_, hang_up_;
  std::thread thread_;
};

}  // namespace tessera::client
