// What a RequestScheduler is set to. Plain values.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace tessera::server {

struct SchedulerOptions {
  absl::Duration due_after = absl::Seconds(60);
  absl::Duration priority_step = absl::Seconds(30);
  absl::Duration join_timeout = absl::Seconds(2);
  double preempting_ratio = 4;  // a preempting task is at least this much shorter than the rest of the batch
  double preempted_share = 0.5;
  absl::Duration large_step = absl::Seconds(1);  // a task is large for a group on which its steps take longer
  int32_t max_resident = 16;                     // tasks in one worker group, suspended ones included
  // Steps of a batch that take less are planned several at a time, no more than take so long; 0: one by one.
  absl::Duration steps_together = absl::ZeroDuration();
  // A batch has up to twice a group's max_rows where its steps take no longer than this; 0: never.
  absl::Duration short_step = absl::ZeroDuration();
  double initial_flops_per_second = 1e11;  // of one rank, until a group was seen to step

  // Bounds of admission, over what waits and runs; 0: none.
  int64_t max_waiting = 100'000;                         // tasks
  absl::Duration max_expected_wait = absl::Minutes(10);  // of a new task
};

}  // namespace tessera::server
