// AdmissionControl decides whether tasks may be enqueued and predicts how long they would wait. Pure; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/scheduling/group_capacity.h"
#include "server/scheduling/group_table.h"
#include "server/scheduling/key_shares.h"
#include "server/scheduling/scheduler_options.h"
#include "server/scheduling/task_table.h"

namespace tessera::server {

// Bounds of one key, which apply in addition to the scheduler's bounds; 0: no bound.
struct KeyBounds {
  int64_t max_waiting = 0;        // tasks that wait or run
  double max_device_seconds = 0;  // predicted for those tasks
};

// A reservation for `tasks` more tasks. It counts against all bounds until it is used up or released.
struct Admission {
  // RESOURCE_EXHAUSTED: a bound would be exceeded. FAILED_PRECONDITION: the model has no group. INVALID_ARGUMENT: the
  // task is too large for every group.
  absl::Status status;
  absl::Duration expected_wait;  // time until a task admitted now would start; if refused: until it could be admitted
  uint64_t ticket = 0;           // set if admitted
  bool key_is_full = false;      // refused because of its key's bounds; tasks of other keys may still be admitted
};

class AdmissionControl final {
 public:
  AdmissionControl(const SchedulerOptions& options, const GroupTable& groups, const GroupCapacity& capacity,
                   const TaskTable& tasks, KeyShares& keys)
      : options_(options), groups_(groups), capacity_(capacity), tasks_(tasks), keys_(keys) {}

  // Sets the bounds of the same names in SchedulerOptions.
  void SetBounds(int64_t max_waiting, absl::Duration max_expected_wait);

  // Decides at once; the only state it changes is the ticket. Messages may be shown to callers.
  Admission Admit(const std::string& key, const ShapeClass& shape, int32_t steps, int32_t tasks,
                  const KeyBounds& bounds);
  // Uses up the reservation of one task. FAILED_PRECONDITION: the ticket is another key's, or used up.
  absl::Status Redeem(uint64_t ticket, const std::string& key);
  void Release(uint64_t ticket);

  // Position 0 is next. Absent for a task that does not wait.
  std::optional<int64_t> QueuePosition(TaskId task) const;
  // Time until the task starts; absent for a task that does not wait, infinite while no group of its model is ready.
  std::optional<absl::Duration> ExpectedWait(TaskId task) const;
  double QueuedDeviceSeconds(const std::string& model) const;  // predicted for all unfinished tasks of the model

  // Adds a task that another server executes: it counts as work of the model, but of none of these groups. Its id must
  // not have been added before.
  void AddElsewhere(const SchedulerTask& task);
  void RemoveElsewhere(TaskId task);  // an unknown id is no error
  int64_t Elsewhere(const std::string& model) const;

  absl::Status CheckInvariants() const;

 private:
  struct Ticket {
    std::string key;
    std::string model;
    int32_t tasks = 0;
    double flops = 0;  // per task
  };

  Admission WithinBounds(const std::string& model, double flops, int32_t tasks) const;
  Admission WithinBoundsOf(const std::string& key, const KeyBounds& bounds, const std::string& model, double flops,
                           int32_t tasks) const;
  double RunningFlops(const std::string& model) const;
  double UnfinishedFlops(const std::string& model) const;
  absl::Duration WaitFor(const std::string& model, double flops) const;

  SchedulerOptions options_;
  const GroupTable& groups_;
  const GroupCapacity& capacity_;
  const TaskTable& tasks_;
  KeyShares& keys_;
  std::map<uint64_t, Ticket> tickets_;
  struct Work {
    int64_t tasks = 0;
    double flops = 0;
  };
  std::unordered_map<TaskId, Ticket> elsewhere_;
  std::map<std::string, Work> elsewhere_of_;  // by model
  int64_t promised_tasks_ = 0;
  uint64_t next_ticket_ = 1;
};

}  // namespace tessera::server
