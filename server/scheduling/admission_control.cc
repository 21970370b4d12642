#include "server/scheduling/admission_control.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/macros/status_macros.h"
#include "control/model/model_cost.h"

namespace tessera::server {

namespace {

std::string SecondsText(absl::Duration wait) {
  return wait == absl::InfiniteDuration() ? "an unknown time"
                                          : absl::StrFormat("%.0f s", std::ceil(absl::ToDoubleSeconds(wait)));
}

Admission Full(const std::string& message, absl::Duration wait, bool key_is_full) {
  return {.status = absl::ResourceExhaustedError(message), .expected_wait = wait, .key_is_full = key_is_full};
}

}  // namespace

void AdmissionControl::SetBounds(int64_t max_waiting, absl::Duration max_expected_wait) {
  options_.max_waiting = max_waiting;
  options_.max_expected_wait = max_expected_wait;
}

double AdmissionControl::RunningFlops(const std::string& model) const {
  double flops = 0;
  for (const auto& [id, group] : groups_.all()) {
    if (group.description.model != model) continue;
    for (const TaskId task : group.residents) flops += tasks_.Find(task)->RemainingFlops();
  }
  return flops;
}

double AdmissionControl::UnfinishedFlops(const std::string& model) const {
  double flops = tasks_.Waiting(model).flops() + RunningFlops(model);
  if (const auto work = elsewhere_of_.find(model); work != elsewhere_of_.end()) flops += work->second.flops;
  for (const auto& [id, ticket] : tickets_) {
    if (ticket.model == model) flops += ticket.tasks * ticket.flops;
  }
  return flops;
}

absl::Duration AdmissionControl::WaitFor(const std::string& model, double flops) const {
  const double throughput = capacity_.Throughput(model);
  if (throughput <= 0) return absl::InfiniteDuration();
  return absl::Seconds(std::max(0.0, flops) / throughput);
}

Admission AdmissionControl::WithinBounds(const std::string& model, double flops, int32_t tasks) const {
  const absl::Duration wait = WaitFor(model, UnfinishedFlops(model));
  const int64_t promised = tasks_.waiting() + promised_tasks_ + tasks;
  if (options_.max_waiting > 0 && promised > options_.max_waiting) {
    return Full(absl::StrCat("the queue is full: ", options_.max_waiting, " images may wait; the wait is about ",
                             SecondsText(wait)),
                WaitFor(model, static_cast<double>(promised - options_.max_waiting) * flops), false);
  }
  if (options_.max_expected_wait > absl::ZeroDuration() && wait > options_.max_expected_wait &&
      wait != absl::InfiniteDuration()) {
    return Full(absl::StrCat("the queue holds about ", SecondsText(wait), " of work; at most ",
                             SecondsText(options_.max_expected_wait), " are accepted"),
                wait - options_.max_expected_wait, false);
  }
  return {.expected_wait = wait};
}

Admission AdmissionControl::WithinBoundsOf(const std::string& key, const KeyBounds& bounds, const std::string& model,
                                           double flops, int32_t tasks) const {
  const KeyShares::Key& state = keys_.Of(key);
  const int64_t has = state.live + state.promised;
  if (bounds.max_waiting > 0 && has + tasks > bounds.max_waiting) {
    return Full(
        absl::StrCat("this key may have ", bounds.max_waiting, " images queued or running at once and has ", has),
        WaitFor(model, flops), true);
  }
  const absl::Duration own = WaitFor(model, state.flops + state.promised_flops + tasks * flops);
  if (bounds.max_device_seconds > 0 && absl::ToDoubleSeconds(own) > bounds.max_device_seconds) {
    return Full(absl::StrCat("this key may have ", bounds.max_device_seconds,
                             " s of work queued at once; with this it would be ", SecondsText(own)),
                own - absl::Seconds(bounds.max_device_seconds), true);
  }
  return {};
}

Admission AdmissionControl::Admit(const std::string& key, const ShapeClass& shape, int32_t steps, int32_t tasks,
                                  const KeyBounds& bounds) {
  if (steps < 1 || tasks < 1) {
    return {.status = absl::InvalidArgumentError("a task has at least one step, a job at least one task")};
  }
  if (absl::Status fits = capacity_.CheckFits(shape); !fits.ok()) {
    return {.status = std::move(fits), .expected_wait = absl::InfiniteDuration()};
  }
  const control::ModelCost& cost = capacity_.CostOf(shape.model);
  const double flops = steps * control::StepFlops(cost, shape.work()) + capacity_.CodecFlops(shape);
  Admission admission = WithinBounds(shape.model, flops, tasks);
  if (!admission.status.ok()) return admission;
  Admission own = WithinBoundsOf(key, bounds, shape.model, flops, tasks);
  if (!own.status.ok()) return own;
  admission.ticket = next_ticket_++;
  tickets_[admission.ticket] = {.key = key, .model = shape.model, .tasks = tasks, .flops = flops};
  promised_tasks_ += tasks;
  keys_.Promise(key, tasks, tasks * flops);
  return admission;
}

absl::Status AdmissionControl::Redeem(uint64_t id, const std::string& key) {
  const auto ticket = tickets_.find(id);
  if (ticket == tickets_.end() || ticket->second.key != key) {
    return absl::FailedPreconditionError("the ticket does not belong to this key, or was redeemed");
  }
  --promised_tasks_;
  keys_.Promise(key, -1, -ticket->second.flops);
  if (--ticket->second.tasks == 0) tickets_.erase(ticket);
  return absl::OkStatus();
}

void AdmissionControl::Release(uint64_t id) {
  const auto ticket = tickets_.find(id);
  if (ticket == tickets_.end()) return;
  promised_tasks_ -= ticket->second.tasks;
  keys_.Promise(ticket->second.key, -ticket->second.tasks, -ticket->second.tasks * ticket->second.flops);
  tickets_.erase(ticket);
}

std::optional<int64_t> AdmissionControl::QueuePosition(TaskId id) const {
  const ScheduledTask* task = tasks_.Find(id);
  if (task == nullptr || task->phase != TaskPhase::kWaiting) return std::nullopt;
  const WaitingTasks& queue = tasks_.Waiting(task->spec.shape.model);
  const KeyShares::Key& own = keys_.Of(task->spec.key);
  const int64_t rank = queue.Rank(task->spec.key, task->order);
  // Adds the tasks that the other keys' shares let go first.
  double position = static_cast<double>(rank);
  queue.VisitKeys([&](const std::string& name, int64_t tasks) {
    if (name == task->spec.key) return;
    const KeyShares::Key& other = keys_.Of(name);
    const double ratio = other.weight / own.weight;
    const bool before = std::pair(other.virtual_time, name) < std::pair(own.virtual_time, task->spec.key);
    const double turns =
        before ? std::ceil(static_cast<double>(rank + 1) * ratio) : std::floor(static_cast<double>(rank) * ratio);
    position += std::min(static_cast<double>(tasks), turns);
  });
  return static_cast<int64_t>(position);
}

std::optional<absl::Duration> AdmissionControl::ExpectedWait(TaskId id) const {
  const std::optional<int64_t> position = QueuePosition(id);
  if (!position) return std::nullopt;
  const std::string& model = tasks_.Find(id)->spec.shape.model;
  const bool any_ready = std::ranges::any_of(
      groups_.all(), [&](const auto& entry) { return entry.second.ready && entry.second.description.model == model; });
  if (!any_ready) return absl::InfiniteDuration();
  const WaitingTasks& queue = tasks_.Waiting(model);
  const double ahead = queue.flops() * static_cast<double>(*position) / static_cast<double>(queue.size());
  return WaitFor(model, ahead + RunningFlops(model));
}

double AdmissionControl::QueuedDeviceSeconds(const std::string& model) const {
  const double throughput = capacity_.Throughput(model);
  return throughput > 0 ? UnfinishedFlops(model) / throughput : 0;
}

void AdmissionControl::AddElsewhere(const SchedulerTask& task) {
  const control::ModelCost& cost = capacity_.CostOf(task.shape.model);
  const double flops = task.steps * control::StepFlops(cost, task.shape.work()) + capacity_.CodecFlops(task.shape);
  elsewhere_[task.id] = {.key = task.key, .model = task.shape.model, .tasks = 1, .flops = flops};
  Work& work = elsewhere_of_[task.shape.model];
  ++work.tasks;
  work.flops += flops;
}

void AdmissionControl::RemoveElsewhere(TaskId id) {
  const auto task = elsewhere_.find(id);
  if (task == elsewhere_.end()) return;
  const auto work = elsewhere_of_.find(task->second.model);
  --work->second.tasks;
  work->second.flops -= task->second.flops;
  if (work->second.tasks == 0) elsewhere_of_.erase(work);  // also discards the rounding error
  elsewhere_.erase(task);
}

int64_t AdmissionControl::Elsewhere(const std::string& model) const {
  const auto work = elsewhere_of_.find(model);
  return work == elsewhere_of_.end() ? 0 : work->second.tasks;
}

absl::Status AdmissionControl::CheckInvariants() const {
  std::map<std::string, KeyShares::Key> counted;
  int64_t promised = 0;
  for (const auto& [id, ticket] : tickets_) {
    promised += ticket.tasks;
    counted[ticket.key].promised += ticket.tasks;
    counted[ticket.key].promised_flops += ticket.tasks * ticket.flops;
  }
  if (promised != promised_tasks_) return absl::InternalError("tasks are miscounted");
  for (const auto& [name, key] : keys_.all()) {
    const KeyShares::Key& own = counted[name];
    if (key.promised != own.promised ||
        std::abs(key.promised_flops - own.promised_flops) > 1e-6 * (1 + own.promised_flops)) {
      return absl::InternalError(absl::StrCat("the admissions of key ", name, " are miscounted"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::server
