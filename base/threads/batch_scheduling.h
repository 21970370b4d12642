// Scheduling for threads that wait for others and then do little work.
#pragma once

#include <sched.h>

namespace tessera::base {

// Puts the calling thread under SCHED_BATCH: if it is woken and no processor is idle, it waits some milliseconds for
// the running thread's time slice to end instead of preempting it. Threads and processes that it starts do not inherit
// the policy.
inline void UseBatchScheduling() {
  const sched_param none = {};
  // If the call is refused, nothing changes.
  (void)sched_setscheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, &none);
}

}  // namespace tessera::base
