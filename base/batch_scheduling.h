// For threads that wait for others and then do little.
#pragma once

#include <sched.h>

namespace tessera::base {

// Puts the calling thread under SCHED_BATCH: when it is woken and no processor is idle, it waits until one that
// computes has had its turn, some milliseconds, instead of preempting it. Threads and processes that it starts do not
// inherit it.
inline void UseBatchScheduling() {
  const sched_param none = {};
  // Where it is refused, all is as it was.
  (void)sched_setscheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, &none);
}

}  // namespace tessera::base
