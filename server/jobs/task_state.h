// The life of one task (one image of a job) as a state machine, and what becomes of the tasks of a group that died.
// Pure: no store, no clock.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera::server {

// The numbers are stored.
enum class TaskState : uint8_t {
  kQueued = 0,
  kRunning = 1,
  kDone = 2,
  kFailed = 3,
  kCancelled = 4,
  kQuarantined = 5,  // its worker died kPoisonDeaths times while it ran there alone
};

inline constexpr int kTaskStates = 6;
inline constexpr int32_t kPoisonDeaths = 3;

// How often the task has moved until it waits or runs so: each claim and each giving back is one more.
inline int64_t MovesOf(TaskState state, int32_t attempt) {
  return 2 * int64_t{attempt} + (state == TaskState::kQueued ? 1 : 0);
}

inline bool IsEnded(TaskState state) { return state >= TaskState::kDone; }

absl::string_view TaskStateName(TaskState state);

// FAILED_PRECONDITION, naming both states, for a move that is not in the machine:
//   queued → running, failed (deadline, damaged row), cancelled
//   running → queued (given back), done, failed, cancelled, quarantined
// and nothing out of the other four.
absl::Status CheckMove(TaskState from, TaskState to);

struct Blame {
  int32_t deaths = 0;     // times its worker died while it was alone there
  bool isolated = false;  // must have a worker to itself when it runs again

  bool operator==(const Blame&) const = default;
};

// After the worker died in which the task was, `was_isolated` telling whether no other was there, suspended ones
// included. Only a task that was alone is blamed; those that shared the worker are each run alone next, which finds the
// culprit.
Blame AfterDeath(const Blame& before, bool was_isolated);

inline bool MustBeQuarantined(const Blame& blame) { return blame.deaths >= kPoisonDeaths; }

}  // namespace tessera::server
