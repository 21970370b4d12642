// SchedulerOptions holds the settings of a RequestScheduler. Plain values.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace tessera::server {

struct SchedulerOptions {
  absl::Duration join_timeout = absl::Seconds(2);
  absl::Duration large_step = absl::Seconds(1);  // a task is large for a group on which its steps take longer
  int32_t max_resident = 16;                     // tasks in one worker group, suspended ones included
  // Short steps of a batch are planned together as long as they take no longer than this in total; 0: one at a time.
  absl::Duration steps_together = absl::ZeroDuration();
  // A batch may have up to twice the group's max_rows if its steps take no longer than this; 0: never.
  absl::Duration short_step = absl::ZeroDuration();
  double initial_flops_per_second = 1e11;  // per rank, until the group's first step is measured

  // Bounds of admission over waiting and running tasks; 0: no bound.
  int64_t max_waiting = 100'000;                         // tasks
  absl::Duration max_expected_wait = absl::Minutes(10);  // for a new task
};

}  // namespace tessera::server
