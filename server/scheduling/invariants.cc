// What must hold between any two calls of a RequestScheduler.
#include <cmath>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "server/scheduling/request_scheduler.h"

namespace tessera {
namespace {

absl::Status Broken(const std::string& what) { return absl::InternalError(what); }

}  // namespace

absl::Status RequestScheduler::CheckInvariants() const {
  std::map<std::string, int64_t> live;
  std::map<std::string, double> flops;
  int64_t waiting = 0, promised = 0;
  std::set<TaskId> resident;
  for (const auto& [id, group] : groups_) {
    const std::string name = absl::StrCat("group ", id);
    if (group.in_flight.size() > kMaxStepsInFlight) return Broken(name + " has too many steps in flight");
    if (!group.ready && !group.residents.empty()) return Broken(name + " is down and has tasks");
    if (static_cast<int32_t>(group.residents.size()) > options_.max_resident) {
      return Broken(name + " has too many tasks");
    }
    const std::vector<TaskId> batch = Batch(group);
    for (TaskId task_id : batch) {
      if (Find(task_id)->spec.shape != Find(batch[0])->spec.shape) {
        return Broken(name + " has two classes in its batch");
      }
    }
    if (!batch.empty() && !Fits(group, Find(batch[0])->spec.shape, static_cast<int32_t>(batch.size()))) {
      return Broken(name + " has a batch that does not fit");
    }
    for (TaskId task_id : group.residents) {
      const ScheduledTask* task = Find(task_id);
      if (task == nullptr) return Broken(name + " has a task that nobody knows");
      if (!resident.insert(task_id).second) return Broken(absl::StrCat("task ", task_id, " is in two places"));
      if (task->group != id || task->phase == TaskPhase::kWaiting) return Broken(name + " has a task of another");
      if (task->spec.alone && group.residents.size() > 1) return Broken(name + " has company for a task to run alone");
      if (task->spec.shape.model != group.description.model) return Broken(name + " has a task of another model");
    }
    if (group.holds) {
      const ScheduledTask* task = Find(*group.holds);
      if (task == nullptr || task->phase != TaskPhase::kWaiting || task->held_by != id) {
        return Broken(name + " holds a task that does not wait for it");
      }
    }
  }
  for (const auto& [id, task] : tasks_) {
    if (task.phase == TaskPhase::kWaiting) {
      ++waiting;
      if (task.issued != 0) return Broken(absl::StrCat("task ", id, " waits and has steps"));
      if (!enqueued_.contains({task.spec.enqueued, id})) return Broken(absl::StrCat("task ", id, " has no time"));
    } else if (!resident.contains(id)) {
      return Broken(absl::StrCat("task ", id, " runs nowhere"));
    }
    if (task.issued > task.spec.steps) return Broken(absl::StrCat("task ", id, " has too many steps"));
    ++live[task.spec.key];
    flops[task.spec.key] += task.RemainingFlops();
  }
  for (const auto& [id, ticket] : tickets_) {
    promised += ticket.tasks;
    flops[ticket.key] += ticket.tasks * ticket.flops;
  }
  if (waiting != waiting_tasks_ || promised != promised_tasks_) return Broken("tasks are miscounted");
  int64_t queued = 0;
  for (const auto& [model, queue] : waiting_) queued += queue.size();
  if (queued != waiting) return Broken("the queues do not hold what waits");
  if (static_cast<int64_t>(enqueued_.size()) != waiting) return Broken("a task that does not wait has a time");
  for (const auto& [name, key] : keys_) {
    if (key.live != live[name]) return Broken(absl::StrCat("the tasks of key ", name, " are miscounted"));
    if (std::abs(key.flops - flops[name]) > 1e-6 * (1 + std::abs(flops[name]) + key.charged)) {
      return Broken(absl::StrCat("the operations of key ", name, " are miscounted"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
