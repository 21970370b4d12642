#include "server/workers/step_loop.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "control/protocol/job_commands.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kIdleWait = absl::Seconds(1);
// The number of StartJob commands sent before the first is answered. Workers read few commands ahead; a worker whose
// replies are not read blocks.
constexpr size_t kMaxStartsUnanswered = 16;

// Converts an error of a task that has already started. The request was validated at the start, so a later
// INVALID_ARGUMENT is not the user's mistake.
absl::Status AfterStart(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? absl::InternalError(status.message()) : status;
}

}  // namespace

StepLoop::StepLoop(StepWorkers& workers, StepOwner& owner, GroupTrace& trace, StepLoopOptions options)
    : workers_(workers),
      owner_(owner),
      trace_(trace),
      options_(std::move(options)),
      encodes_ahead_(options_.next_prompts != nullptr) {}

void StepLoop::Answered() const {
  if (options_.answered) options_.answered();
}

bool StepLoop::IsDead(const absl::Status& status) const {
  return status.code() == absl::StatusCode::kUnavailable || !workers_.health().ok();
}

bool StepLoop::EndsGroup(const absl::Status& step) const {
  return IsDead(step) || (absl::IsDataLoss(step) && options_.data_loss_ends_group);
}

bool StepLoop::IsPreviewDue(const Running& running) {
  const int32_t late = base::Planted("preview_after_a_later_step") ? 1 : 0;
  return std::ranges::binary_search(running.preview_after, running.sent - late);
}

absl::Status StepLoop::Turn() {
  StepPlan plan;
  if (flights_.size() < kMaxStepsInFlight) plan = owner_.Next(options_.group);
  trace_.OnSuspended(plan.suspended);
  for (const TaskId task : plan.end) RETURN_IF_ERROR(End(task));
  RETURN_IF_ERROR(Start(plan.start));
  std::erase_if(plan.step, [this](TaskId task) { return !running_.contains(task); });
  std::erase_if(plan.decode, [this](TaskId task) { return !running_.contains(task); });
  if (!plan.step.empty()) RETURN_IF_ERROR(MakeSteps(plan.step, plan.steps));
  for (const TaskId task : plan.decode) {
    if (running_.contains(task)) RETURN_IF_ERROR(SendDecode(task));  // false if its last step failed
  }
  if (!plan.empty() && flights_.size() < kMaxStepsInFlight) return absl::OkStatus();
  if (!flights_.empty() || !decodings_.empty()) return WaitForAnswer();
  RETURN_IF_ERROR(WaitForEnds());
  owner_.WaitForWork(options_.group, kIdleWait);
  return absl::OkStatus();
}

absl::Status StepLoop::FinishSteps() {
  while (!flights_.empty()) RETURN_IF_ERROR(WaitForSteps());
  return WaitForEnds();
}

absl::Status StepLoop::Start(const std::vector<TaskId>& tasks) {
  std::deque<Starting> sent;
  const auto wait_for_first = [&] {
    Starting first = std::move(sent.front());
    sent.pop_front();
    return WaitForStart(std::move(first));
  };
  for (const TaskId task : tasks) {
    absl::StatusOr<RunnableTask> claimed = owner_.Claim(options_.group, task);
    if (!claimed.ok()) {
      owner_.OnEnded(options_.group, task);
      continue;
    }
    const absl::Time now = trace_.Now();
    const absl::StatusOr<uint64_t> sequence = workers_.SendStartJob(task, *claimed->parameters);
    if (!sequence.ok()) {
      RETURN_IF_ERROR(FailStart(task, sequence.status()));
      continue;
    }
    sent.push_back({.sequence = *sequence, .task = task, .claimed = *std::move(claimed), .sent = now});
    // The prompts of the following tasks may be encoded together with this one's.
    if (encodes_ahead_ || sent.size() == kMaxStartsUnanswered) RETURN_IF_ERROR(wait_for_first());
  }
  while (!sent.empty()) RETURN_IF_ERROR(wait_for_first());
  return absl::OkStatus();
}

absl::Status StepLoop::FailStart(TaskId task, const absl::Status& reason) {
  if (IsDead(reason)) return reason;
  owner_.OnFailed(options_.group, task, reason);
  owner_.OnEnded(options_.group, task);
  return absl::OkStatus();
}

absl::Status StepLoop::WaitForStart(Starting starting) {
  const TaskId task = starting.task;
  const absl::StatusOr<control::JobStarted> started = workers_.WaitForStart(starting.sequence);
  Answered();
  if (!started.ok()) return FailStart(task, started.status());
  // Commands run in the order in which they were sent: the steps sent before this start ended before it began.
  const absl::Time began = trace_.OnEncoded(task, starting.claimed.image, starting.sent, *started);
  for (Flight& flight : flights_) flight.ended = std::min(flight.ended, began);
  Running& running = running_[task] = {.task = std::move(starting.claimed), .started = *started};
  running.preview_after = owner_.OnStarted(options_.group, task, *started);
  return encodes_ahead_ && !started->cached ? EncodeAhead() : absl::OkStatus();
}

absl::Status StepLoop::EncodeAhead() {
  const std::vector<control::JobParameters> jobs = options_.next_prompts();
  if (jobs.empty()) return absl::OkStatus();
  const absl::StatusOr<int32_t> encoded =
      workers_.EncodePrompts(absl::MakeConstSpan(jobs).first(std::min(jobs.size(), control::kMaxPromptsAhead)));
  Answered();
  if (!encoded.ok() && IsDead(encoded.status())) return encoded.status();
  // If the cache holds only one prompt, the next one would evict it.
  encodes_ahead_ = encoded.ok() && (*encoded > 1 || jobs.size() == 1);
  return absl::OkStatus();
}

absl::StatusOr<bool> StepLoop::MayShare(std::vector<TaskId>& tasks) {
  if (tasks.size() <= 1 || options_.proof == nullptr) return true;
  const control::JobStarted started = running_.at(tasks[0]).started;
  if (options_.proof->IsProven(started, tasks.size())) return true;
  RETURN_IF_ERROR(FinishSteps());
  // Tasks that failed meanwhile leave a different batch.
  if (std::erase_if(tasks, [this](TaskId task) { return !running_.contains(task); }) > 0) return MayShare(tasks);
  const absl::StatusOr<bool> may_share = options_.proof->Prove(tasks, started);
  if (may_share.ok() && !*may_share) owner_.OnBatchDiffers(options_.group, tasks);
  return may_share;
}

int32_t StepLoop::StepsToPreview(const std::vector<TaskId>& tasks, int32_t most) const {
  for (const TaskId task : tasks) {
    const Running& running = running_.at(task);
    const auto due = std::ranges::upper_bound(running.preview_after, running.sent);
    if (due != running.preview_after.end()) most = std::min(most, *due - running.sent);
  }
  return most;
}

absl::Status StepLoop::MakeSteps(std::vector<TaskId>& tasks, int32_t steps) {
  while (steps > 0) {
    ASSIGN_OR_RETURN(const int32_t sent, SendSteps(tasks, steps));
    if (sent == 0) break;
    steps -= sent;
    // A preview shows the latents at the time its command runs, so no later step may be sent before it.
    const bool shows = std::ranges::any_of(tasks, [this](TaskId task) { return IsPreviewDue(running_.at(task)); });
    // Steps made one by one are sent only after earlier ones are answered, so nothing may be sent before them either.
    if (shows || steps > 0 || !flights_.back().apart.empty()) RETURN_IF_ERROR(FinishSteps());
    if (shows) RETURN_IF_ERROR(ShowPreviews(tasks));
    std::erase_if(tasks, [this](TaskId task) { return !running_.contains(task); });
  }
  OnNotStepped(steps);
  return absl::OkStatus();
}

absl::StatusOr<int32_t> StepLoop::SendSteps(std::vector<TaskId>& tasks, int32_t most) {
  if (tasks.empty()) return 0;
  ASSIGN_OR_RETURN(const bool shared, MayShare(tasks));
  if (tasks.empty()) return 0;
  const absl::Time sent = trace_.Now();
  const absl::Span<const TaskId> together(tasks.data(), shared ? tasks.size() : 1);
  const int32_t count = together.size() == tasks.size() ? StepsToPreview(tasks, most) : 1;
  ASSIGN_OR_RETURN(const uint64_t sequence, workers_.SendSteps(together, count));
  for (const TaskId task : tasks) running_.at(task).sent += count;
  flights_.push_back({.sequence = sequence,
                      .tasks = tasks,
                      .apart = {tasks.begin() + together.size(), tasks.end()},
                      .count = count,
                      .completed = running_.at(tasks[0]).sent,
                      .sent = sent});
  return count;
}

absl::StatusOr<std::vector<double>> StepLoop::WaitFor(const Flight& flight) {
  const absl::StatusOr<std::vector<control::Stepped>> steps = workers_.WaitForSteps(flight.sequence);
  Answered();
  RETURN_IF_ERROR(steps.status());
  if (static_cast<int32_t>(steps->size()) != flight.count) {
    return absl::UnavailableError(absl::StrCat("the worker reports ", steps->size(), " steps of ", flight.count));
  }
  std::vector<double> seconds;
  for (int32_t due = flight.completed - flight.count; const control::Stepped& stepped : *steps) {
    if (stepped.completed != ++due) {
      return absl::UnavailableError(
          absl::StrCat("the worker reports step ", stepped.completed, " after step ", due - 1));
    }
    seconds.push_back(stepped.seconds);
  }
  for (const TaskId task : flight.apart) {
    ASSIGN_OR_RETURN(const uint64_t sequence, workers_.SendStep(absl::MakeConstSpan(&task, 1)));
    const absl::StatusOr<control::Stepped> stepped = workers_.WaitForStep(sequence);
    Answered();
    RETURN_IF_ERROR(stepped.status());
    seconds.back() += stepped->seconds;
  }
  return seconds;
}

absl::Status StepLoop::WaitForSteps() {
  const Flight flight = flights_.front();
  flights_.erase(flights_.begin());
  const absl::StatusOr<std::vector<double>> stepped = WaitFor(flight);
  if (!stepped.ok()) return EndsGroup(stepped.status()) ? stepped.status() : FailStep(flight, stepped.status());
  OnStepped(flight, *stepped);
  return WaitForEnds(flight.sequence);
}

absl::Status StepLoop::WaitForEnds(uint64_t before) {
  while (!endings_.empty() && endings_.front() < before) {
    const absl::Status ended = workers_.WaitForEnd(endings_.front());
    endings_.pop_front();
    Answered();
    RETURN_IF_ERROR(ended);
  }
  return absl::OkStatus();
}

void StepLoop::OnStepped(const Flight& flight, const std::vector<double>& seconds) {
  double later = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  const absl::Time end = std::min(flight.ended, trace_.Now());
  for (const double step : seconds) {
    later -= step;
    trace_.OnStepped(flight.tasks, flight.sent, end - absl::Seconds(later), step);
    owner_.OnStepped(options_.group, flight.tasks, step);
  }
}

void StepLoop::OnNotStepped(int32_t steps) {
  for (; steps > 0; --steps) owner_.OnStepped(options_.group, {}, 0);
}

absl::Status StepLoop::FailStep(const Flight& flight, const absl::Status& error) {
  OnNotStepped(flight.count);
  std::set<TaskId> failed(flight.tasks.begin(), flight.tasks.end());
  // A later step that includes one of the failed tasks also fails, and has then not been made for its other tasks
  // either.
  for (const Flight& later : std::exchange(flights_, {})) {
    const absl::StatusOr<std::vector<double>> made = WaitFor(later);
    if (made.ok()) {
      OnStepped(later, *made);
      continue;
    }
    if (EndsGroup(made.status())) return made.status();
    OnNotStepped(later.count);
    failed.insert(later.tasks.begin(), later.tasks.end());
  }
  // A task that ended meanwhile may have been the cause.
  const bool was_alone = failed.size() == 1;
  std::erase_if(failed, [this](TaskId task) { return !running_.contains(task); });
  const std::vector<TaskId> tasks(failed.begin(), failed.end());
  if (tasks.empty()) return absl::OkStatus();
  if (was_alone) {
    owner_.OnFailed(options_.group, tasks[0], AfterStart(error));
  } else {
    owner_.OnBatchFailed(options_.group, tasks, AfterStart(error));
  }
  for (const TaskId task : tasks) RETURN_IF_ERROR(End(task));
  return absl::OkStatus();
}

absl::Status StepLoop::ShowPreviews(const std::vector<TaskId>& tasks) {
  for (const TaskId task : tasks) {
    const auto found = running_.find(task);
    if (found == running_.end() || !IsPreviewDue(found->second)) continue;
    const absl::Time sent = trace_.Now();
    const absl::StatusOr<control::DecodedPicture> picture =
        OfAllSteps(task, workers_.Decode(task, found->second.started));
    Answered();
    if (!picture.ok() && IsDead(picture.status())) return picture.status();
    trace_.OnDecoded(task, "preview", sent, picture.ok() ? picture->seconds : GroupTrace::kAllTheTime);
    if (picture.ok()) {
      owner_.OnPreview(options_.group, task, picture->image);
    } else {
      owner_.OnPreviewFailed(options_.group, task, picture.status());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<control::DecodedPicture> StepLoop::OfAllSteps(TaskId task,
                                                             absl::StatusOr<control::DecodedPicture> picture) const {
  const int32_t sent = running_.at(task).sent;
  if (!picture.ok() || picture->completed == sent) return picture;
  return absl::UnavailableError(
      absl::StrCat("the worker made the picture of ", picture->completed, " steps and not of ", sent));
}

absl::Status StepLoop::SendDecode(TaskId task) {
  const absl::Time sent = trace_.Now();
  ASSIGN_OR_RETURN(const uint64_t sequence, workers_.SendDecode(task));
  decodings_.push_back({.sequence = sequence, .task = task, .sent = sent});
  return absl::OkStatus();
}

absl::Status StepLoop::WaitForDecode(const Decoding& decoding) {
  const TaskId task = decoding.task;
  absl::StatusOr<control::DecodedPicture> picture =
      OfAllSteps(task, workers_.WaitForDecode(decoding.sequence, running_.at(task).started));
  Answered();
  if (!picture.ok()) {
    if (IsDead(picture.status())) return picture.status();
    owner_.OnFailed(options_.group, task, AfterStart(picture.status()));
  } else {
    has_made_images_ = true;
    trace_.OnDecoded(task, "decode", decoding.sent, picture->seconds);
    owner_.OnDecoded(options_.group, task, std::move(picture->image), running_.at(task).started, picture->seconds);
  }
  return End(task);
}

absl::Status StepLoop::WaitForAnswer() {
  const auto is_stepped = [this](const Decoding& decoding) {
    return std::ranges::none_of(flights_, [&](const Flight& flight) {
      return std::ranges::find(flight.tasks, decoding.task) != flight.tasks.end();
    });
  };
  std::vector<uint64_t> sequences;
  for (const Decoding& decoding : decodings_) {
    if (is_stepped(decoding)) sequences.push_back(decoding.sequence);
  }
  // When no further step command is in flight, the workers are idle until the next plan, so wait for this one first.
  if (!flights_.empty()) {
    const bool are_the_last = flights_.size() < kMaxStepsInFlight;
    sequences.insert(are_the_last ? sequences.begin() : sequences.end(), flights_.front().sequence);
  }
  const uint64_t answered = workers_.WaitForAny(sequences);
  if (!flights_.empty() && answered == flights_.front().sequence) return WaitForSteps();
  const auto found = std::ranges::find(decodings_, answered, &Decoding::sequence);
  const Decoding decoding = *found;
  decodings_.erase(found);
  return WaitForDecode(decoding);
}

absl::Status StepLoop::End(TaskId task) {
  trace_.OnEnded(task);
  // Discard the picture of a task whose last step failed.
  if (const auto found = std::ranges::find(decodings_, task, &Decoding::task); found != decodings_.end()) {
    const uint64_t sequence = found->sequence;
    decodings_.erase(found);
    const absl::Status decoded = workers_.WaitForDecode(sequence, running_.at(task).started).status();
    Answered();
    if (!decoded.ok() && IsDead(decoded)) return decoded;
  }
  if (running_.erase(task) > 0) {
    ASSIGN_OR_RETURN(const uint64_t sequence, workers_.SendEndJob(task));
    endings_.push_back(sequence);
  }
  owner_.OnEnded(options_.group, task);
  return absl::OkStatus();
}

}  // namespace tessera::server
