// TaskState is the state machine of one task (one image of a job), with the rules for the tasks of a group that died.
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

// Returns how many moves have led to this state: each claim and each return is one move.
inline int64_t MovesOf(TaskState state, int32_t attempt) {
  return 2 * int64_t{attempt} + (state == TaskState::kQueued ? 1 : 0);
}

inline bool IsEnded(TaskState state) { return state >= TaskState::kDone; }

absl::string_view TaskStateName(TaskState state);

// FAILED_PRECONDITION, naming both states, for a move that is not one of these:
//   queued → running, failed (deadline, damaged row), cancelled
//   running → queued (given back), done, failed, cancelled, quarantined
absl::Status CheckMove(TaskState from, TaskState to);

struct Blame {
  int32_t deaths = 0;     // how often its worker died while it was alone there
  bool isolated = false;  // must have a worker alone when it runs again

  bool operator==(const Blame&) const = default;
};

// Returns the blame of a task after its worker died. `was_isolated`: no other task was in the worker, not even a
// suspended one. Only a task that was alone is blamed; tasks that shared the worker each run alone next, which finds
// the culprit.
Blame AfterDeath(const Blame& before, bool was_isolated);

inline bool MustBeQuarantined(const Blame& blame) { return blame.deaths >= kPoisonDeaths; }

}  // namespace tessera::server
