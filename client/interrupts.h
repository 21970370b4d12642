// Ctrl-C and its relatives: the first asks the command to stop, the second ends the process at once.
#ifndef TESSERA_CLIENT_INTERRUPTS_H_
#define TESSERA_CLIENT_INTERRUPTS_H_

#include <signal.h>

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tessera {

// Made before any other thread: it blocks SIGINT, SIGTERM and SIGHUP and waits for them in a thread of its own.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();

  bool requested() const;

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
  mutable absl::Mutex mutex_;
  bool requested_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> react_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_INTERRUPTS_H_
