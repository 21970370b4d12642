// Whether a task may be enqueued, and how long it would wait.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/byte_text.h"
#include "server/scheduling/request_scheduler.h"

namespace tessera {

namespace {

std::string SecondsText(absl::Duration wait) {
  return wait == absl::InfiniteDuration() ? "an unknown time"
                                          : absl::StrFormat("%.0f s", std::ceil(absl::ToDoubleSeconds(wait)));
}

}  // namespace

double RequestScheduler::Throughput(const std::string& model) const {
  double ready = 0, promised = 0;
  for (const auto& [id, group] : groups_) {
    if (group.description.model != model || group.draining) continue;
    const double speed = 1 / group.speed.SecondsPerFlop();
    promised += speed;
    if (group.ready) ready += speed;
  }
  return ready > 0 ? ready : promised;
}

double RequestScheduler::UnfinishedFlops(const std::string& model) const {
  const auto queue = waiting_.find(model);
  double flops = queue == waiting_.end() ? 0 : queue->second.flops();
  for (const auto& [id, ticket] : tickets_) {
    if (ticket.model == model) flops += ticket.tasks * ticket.flops;
  }
  for (const auto& [id, group] : groups_) {
    if (group.description.model != model) continue;
    for (TaskId task : group.residents) flops += Find(task)->RemainingFlops();
  }
  return flops;
}

absl::Duration RequestScheduler::WaitBehind(const std::string& model, double flops) const {
  const double throughput = Throughput(model);
  if (throughput <= 0) return absl::InfiniteDuration();
  return absl::Seconds(std::max(0.0, flops) / throughput);
}

bool RequestScheduler::CouldEverRun(const ShapeClass& shape) const {
  return std::any_of(groups_.begin(), groups_.end(), [&](const auto& entry) {
    return entry.second.description.model == shape.model && Fits(entry.second, shape, 1);
  });
}

absl::Status RequestScheduler::CheckFits(const ShapeClass& shape) const {
  double largest = -1, needed = std::numeric_limits<double>::infinity();
  for (const auto& [id, group] : groups_) {
    if (group.description.model != shape.model || !models_.contains(shape.model)) continue;
    largest = std::max(largest, group.description.memory_bytes);
    needed = std::min(needed, PeakBytes(CostOfModel(shape.model), shape, 1, group.description.share));
  }
  if (largest < 0) {
    return absl::FailedPreconditionError(absl::StrCat("no worker group serves the model \"", shape.model, "\""));
  }
  if (CouldEverRun(shape)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "an image of ", shape.width, "x", shape.height, " needs about ", GibText(needed),
      " beside the weights; the largest group of this model has ", GibText(largest), ": ask for a smaller image"));
}

absl::Duration RequestScheduler::LeastJobTime(const ShapeClass& shape, int32_t steps, int32_t tasks) const {
  const ModelCost& cost = CostOfModel(shape.model);
  const double flops = tasks * (steps * StepFlops(cost, shape) + DecodeFlops(cost, shape));
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [id, group] : groups_) {
    if (group.description.model != shape.model || !Fits(group, shape, 1)) continue;
    least = std::min(least, LeastSeconds(group, shape, flops));
  }
  return std::isinf(least) ? absl::ZeroDuration() : absl::Seconds(least);
}

Admission RequestScheduler::Admit(const std::string& key, const ShapeClass& shape, int32_t steps, int32_t tasks,
                                  const KeyBounds& bounds) {
  const auto refuse = [](absl::Status status, absl::Duration wait) {
    return Admission{.status = std::move(status), .expected_wait = wait};
  };
  if (steps < 1 || tasks < 1) {
    return refuse(absl::InvalidArgumentError("a task has at least one step, a job at least one task"),
                  absl::ZeroDuration());
  }
  if (absl::Status fits = CheckFits(shape); !fits.ok()) return refuse(std::move(fits), absl::InfiniteDuration());
  const ModelCost& cost = CostOfModel(shape.model);
  const double flops = steps * StepFlops(cost, shape) + DecodeFlops(cost, shape);
  const absl::Duration wait = WaitBehind(shape.model, UnfinishedFlops(shape.model));
  const SchedulerOptions& options = options_;
  const int64_t promised = waiting_tasks_ + promised_tasks_ + tasks;
  if (options.max_waiting > 0 && promised > options.max_waiting) {
    const double excess = static_cast<double>(promised - options.max_waiting);
    return refuse(absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", options.max_waiting,
                                                            " images may wait; the wait is about ", SecondsText(wait))),
                  WaitBehind(shape.model, excess * flops));
  }
  if (options.max_expected_wait > absl::ZeroDuration() && wait > options.max_expected_wait &&
      wait != absl::InfiniteDuration()) {
    return refuse(
        absl::ResourceExhaustedError(absl::StrCat("the queue holds about ", SecondsText(wait), " of work; at most ",
                                                  SecondsText(options.max_expected_wait), " are accepted")),
        wait - options.max_expected_wait);
  }
  const auto refuse_key = [&](const std::string& message, absl::Duration time) {
    Admission admission = refuse(absl::ResourceExhaustedError(message), time);
    admission.key_is_full = true;
    return admission;
  };
  KeyState& state = KeyOf(key);
  if (bounds.max_waiting > 0 && state.live + state.promised + tasks > bounds.max_waiting) {
    return refuse_key(absl::StrCat("this key may have ", bounds.max_waiting,
                                   " images queued or running at once and has ", state.live + state.promised),
                      WaitBehind(shape.model, flops));
  }
  const absl::Duration own = WaitBehind(shape.model, state.flops + tasks * flops);
  if (bounds.max_device_seconds > 0 && absl::ToDoubleSeconds(own) > bounds.max_device_seconds) {
    return refuse_key(absl::StrCat("this key may have ", bounds.max_device_seconds,
                                   " s of work queued at once; with this it would be ", SecondsText(own)),
                      own - absl::Seconds(bounds.max_device_seconds));
  }
  const uint64_t ticket = next_number_++;
  tickets_[ticket] = {.key = key, .model = shape.model, .tasks = tasks, .flops = flops};
  promised_tasks_ += tasks;
  state.promised += tasks;
  state.flops += tasks * flops;
  return {.expected_wait = wait, .ticket = ticket};
}

void RequestScheduler::Release(uint64_t id) {
  const auto ticket = tickets_.find(id);
  if (ticket == tickets_.end()) return;
  KeyState& key = KeyOf(ticket->second.key);
  key.promised -= ticket->second.tasks;
  key.flops -= ticket->second.tasks * ticket->second.flops;
  promised_tasks_ -= ticket->second.tasks;
  tickets_.erase(ticket);
}

std::optional<int64_t> RequestScheduler::QueuePosition(TaskId id) const {
  const ScheduledTask* task = Find(id);
  if (task == nullptr || task->phase != TaskPhase::kWaiting) return std::nullopt;
  const WaitingTasks& queue = waiting_.at(task->spec.shape.model);
  const KeyState& own = keys_.at(task->spec.key);
  const int64_t rank = queue.Rank(task->spec.key, task->order);
  // The shares of the others until this task's turn.
  double position = static_cast<double>(rank);
  queue.VisitKeys([&](const std::string& name, int64_t tasks) {
    if (name == task->spec.key) return;
    const KeyState& other = keys_.at(name);
    const double ratio = other.weight / own.weight;
    const bool before = std::pair(other.virtual_time, name) < std::pair(own.virtual_time, task->spec.key);
    const double turns =
        before ? std::ceil(static_cast<double>(rank + 1) * ratio) : std::floor(static_cast<double>(rank) * ratio);
    position += std::min(static_cast<double>(tasks), turns);
  });
  return static_cast<int64_t>(position);
}

std::optional<absl::Duration> RequestScheduler::ExpectedWait(TaskId id) const {
  const std::optional<int64_t> position = QueuePosition(id);
  if (!position) return std::nullopt;
  const ScheduledTask& task = *Find(id);
  const WaitingTasks& queue = waiting_.at(task.spec.shape.model);
  const bool any_ready = std::any_of(groups_.begin(), groups_.end(), [&](const auto& entry) {
    return entry.second.ready && entry.second.description.model == task.spec.shape.model;
  });
  if (!any_ready) return absl::InfiniteDuration();
  double ahead = queue.flops() * static_cast<double>(*position) / static_cast<double>(queue.size());
  for (const auto& [group_id, group] : groups_) {
    if (group.description.model != task.spec.shape.model) continue;
    for (TaskId resident : group.residents) ahead += Find(resident)->RemainingFlops();
  }
  return WaitBehind(task.spec.shape.model, ahead);
}

double RequestScheduler::queued_device_seconds() const {
  double seconds = 0;
  for (const auto& [model, cost] : models_) {
    const double throughput = Throughput(model);
    if (throughput > 0) seconds += UnfinishedFlops(model) / throughput;
  }
  return seconds;
}

}  // namespace tessera
