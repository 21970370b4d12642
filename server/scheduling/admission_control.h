// Whether tasks may be enqueued, and how long they would wait. Pure; one thread.
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

// The bounds of one key, beside those of the scheduler; 0: none.
struct KeyBounds {
  int64_t max_waiting = 0;        // tasks that have not ended
  double max_device_seconds = 0;  // predicted, of the same tasks
};

// A promise that `tasks` more tasks may be enqueued. Counts against all bounds until it is used up or released.
struct Admission {
  // RESOURCE_EXHAUSTED: over a bound; FAILED_PRECONDITION: no group of the model; INVALID_ARGUMENT: too large for all.
  absl::Status status;
  absl::Duration expected_wait;  // until a task admitted now would start; of a refused one: until it could be admitted
  uint64_t ticket = 0;           // of an admitted one
  bool key_is_full = false;      // refused for the bounds of its key, which other keys do not meet
};

class AdmissionControl final {
 public:
  AdmissionControl(const SchedulerOptions& options, const GroupTable& groups, const GroupCapacity& capacity,
                   const TaskTable& tasks, KeyShares& keys)
      : options_(options), groups_(groups), capacity_(capacity), tasks_(tasks), keys_(keys) {}

  // As in SchedulerOptions.
  void SetBounds(int64_t max_waiting, absl::Duration max_expected_wait);

  // Decides at once, changes nothing but the ticket. Messages are fit for callers.
  Admission Admit(const std::string& key, const ShapeClass& shape, int32_t steps, int32_t tasks,
                  const KeyBounds& bounds);
  // One task less is promised. FAILED_PRECONDITION: the ticket is of another key, or used up.
  absl::Status Redeem(uint64_t ticket, const std::string& key);
  void Release(uint64_t ticket);

  // 0: next. Absent for a task that does not wait.
  std::optional<int64_t> QueuePosition(TaskId task) const;
  // Until it starts; absent for a task that does not wait, infinite while no group of its model is ready.
  std::optional<absl::Duration> ExpectedWait(TaskId task) const;
  double QueuedDeviceSeconds(const std::string& model) const;  // predicted, of its tasks that wait or run, anywhere

  // A task that another server runs: work of the model that is none of these groups. Of an id that is not known so.
  void AddElsewhere(const SchedulerTask& task);
  void RemoveElsewhere(TaskId task);  // an unknown one is no error
  int64_t Elsewhere(const std::string& model) const;

  absl::Status CheckInvariants() const;

 private:
  struct Ticket {
    std::string key;
    std::string model;
    int32_t tasks = 0;
    double flops = 0;  // of one task
  };

  Admission WithinBounds(const std::string& model, double flops, int32_t tasks) const;
  Admission WithinBoundsOf(const std::string& key, const KeyBounds& bounds, const std::string& model, double flops,
                           int32_t tasks) const;
  double RunningFlops(const std::string& model) const;
  double UnfinishedFlops(const std::string& model) const;
  absl::Duration WaitBehind(const std::string& model, double flops) const;

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
