// What a group does with its tasks: GroupRunner's thread between OnReady and OnDied.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "server/serving/group_runner.h"

namespace tessera {
namespace {

constexpr absl::Duration kIdleWait = absl::Seconds(1);

// Whether the group is of no more use after a call that ended so.
bool IsDead(const absl::Status& status, WorkerGroup& group) {
  return status.code() == absl::StatusCode::kUnavailable || !group.health().ok();
}

// Of a task that was started. Its request was found sound then, so that what is refused later is no mistake of its.
absl::Status AfterStart(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? absl::InternalError(status.message()) : status;
}

}  // namespace

absl::Status GroupRunner::Work() {
  while (!Stopping()) {
    Answered();
    // Workers may die while nobody asks them anything: no task is given to a group that is known to be dead.
    if (absl::Status health = group_->health(); !health.ok()) return health;
    if (absl::Status answered = AnswerProbes(); !answered.ok()) return answered;
    StepPlan plan;
    if (flights_.size() < kMaxStepsInFlight) plan = owner_.Next(options_.id);
    trace_.OnParked(plan.parked);
    for (const TaskId task : plan.end) {
      if (absl::Status ended = End(task); !ended.ok()) return ended;
    }
    for (const TaskId task : plan.start) {
      if (absl::Status started = Start(task); !started.ok()) return started;
    }
    std::erase_if(plan.step, [this](TaskId task) { return !running_.contains(task); });
    std::erase_if(plan.decode, [this](TaskId task) { return !running_.contains(task); });
    if (!plan.step.empty()) {
      if (absl::Status sent = SendStep(plan.step); !sent.ok()) return sent;
    }
    // Pictures are of the latents as they are when their turn comes in the log: no later step may stand before them.
    const bool has_previews = std::ranges::any_of(plan.step, [this](TaskId task) {
      const Running& running = running_.at(task);
      return std::ranges::binary_search(running.task.preview_after, running.sent);
    });
    const bool shows = has_previews || !plan.decode.empty();
    while (!flights_.empty() && (shows || plan.step.empty() || flights_.size() == kMaxStepsInFlight)) {
      if (absl::Status stepped = WaitForStep(); !stepped.ok()) return stepped;
      if (!shows) break;
    }
    if (has_previews) {
      if (absl::Status shown = ShowPreviews(plan.step); !shown.ok()) return shown;
    }
    for (const TaskId task : plan.decode) {
      if (!running_.contains(task)) continue;  // its last step failed
      if (absl::Status decoded = Decode(task); !decoded.ok()) return decoded;
    }
    if (plan.empty() && flights_.empty()) owner_.WaitForWork(options_.id, kIdleWait);
  }
  return absl::CancelledError("the server ends");
}

absl::Status GroupRunner::Start(TaskId task) {
  absl::StatusOr<RunnableTask> claimed = owner_.Claim(options_.id, task);
  if (!claimed.ok()) {
    owner_.OnEnded(options_.id, task);
    return absl::OkStatus();
  }
  const absl::Time sent = trace_.Now();
  const absl::StatusOr<JobStarted> started = group_->StartJob(task, claimed->parameters);
  Answered();
  if (!started.ok()) {
    if (IsDead(started.status(), *group_)) return started.status();
    owner_.OnFailed(options_.id, task, started.status());
    owner_.OnEnded(options_.id, task);
    return absl::OkStatus();
  }
  // The steps before it in the log were made before it began.
  const absl::Time began = trace_.OnEncoded(task, claimed->image, sent, *started);
  for (Flight& flight : flights_) flight.ended = std::min(flight.ended, began);
  running_[task] = {.task = *std::move(claimed), .started = *started};
  owner_.OnStarted(options_.id, task, *started);
  return absl::OkStatus();
}

absl::Status GroupRunner::SendStep(std::vector<TaskId>& tasks) {
  const absl::StatusOr<bool> shared = MayShare(tasks);
  if (!shared.ok()) return shared.status();
  if (tasks.empty()) {
    owner_.OnStepped(options_.id, {}, 0);
    return absl::OkStatus();
  }
  const absl::Time sent = trace_.Now();
  const absl::Span<const TaskId> together(tasks.data(), *shared ? tasks.size() : 1);
  const absl::StatusOr<uint64_t> sequence = group_->SendStep(together);
  if (!sequence.ok()) return sequence.status();
  for (const TaskId task : tasks) ++running_.at(task).sent;
  flights_.push_back(
      {.sequence = *sequence, .tasks = tasks, .apart = {tasks.begin() + together.size(), tasks.end()}, .sent = sent});
  return absl::OkStatus();
}

absl::StatusOr<bool> GroupRunner::MayShare(std::vector<TaskId>& tasks) {
  if (tasks.size() == 1) return true;
  const JobStarted& started = running_.at(tasks[0]).started;
  const BatchShape shape = {
      .height = started.generated_height, .width = started.generated_width, .tasks = tasks.size()};
  if (proven_batches_.contains(shape)) return true;
  while (!flights_.empty()) {
    if (absl::Status stepped = WaitForStep(); !stepped.ok()) return stepped;
  }
  // Others have failed meanwhile.
  if (std::erase_if(tasks, [this](TaskId task) { return !running_.contains(task); }) > 0) return false;
  const absl::StatusOr<LatentValues> latents = group_->Latents(tasks[0]);
  if (!latents.ok()) return latents.status();
  const absl::StatusOr<LatentValues> alone = group_->Predict(tasks[0], *latents);
  if (!alone.ok()) return alone.status();
  const absl::StatusOr<LatentValues> beside =
      group_->Predict(tasks[0], *latents, absl::MakeConstSpan(tasks).subspan(1));
  if (!beside.ok()) return beside.status();
  const double distance = RelativeDistance(*beside, *alone);
  if (distance <= BatchBound(options_.load.dtype, options_.load.device)) {
    proven_batches_.insert(shape);
    return true;
  }
  log_(LogLine(LogLevel::kWarning, absl::StrCat("group ", options_.name, ": ", tasks.size(), " images of ", shape.width,
                                                "x", shape.height, " change each other by ", distance,
                                                " in a batch; images of this size are made one by one")));
  owner_.OnBatchDiffers(options_.id, tasks);
  return false;
}

bool GroupRunner::EndsGroup(const absl::Status& step) {
  // One rank may do what the layout cannot.
  return IsDead(step, *group_) || (step.code() == absl::StatusCode::kDataLoss && layout() != Layout());
}

// The seconds that it took.
absl::StatusOr<double> GroupRunner::WaitFor(const Flight& flight) {
  absl::StatusOr<Stepped> stepped = group_->WaitForStep(flight.sequence);
  Answered();
  if (!stepped.ok()) return stepped.status();
  double seconds = stepped->seconds;
  for (const TaskId task : flight.apart) {
    const absl::StatusOr<uint64_t> sequence = group_->SendStep({task});
    if (!sequence.ok()) return sequence.status();
    stepped = group_->WaitForStep(*sequence);
    Answered();
    if (!stepped.ok()) return stepped.status();
    seconds += stepped->seconds;
  }
  return seconds;
}

void GroupRunner::TellStepped(const Flight& flight, double seconds) {
  trace_.OnStepped(flight.tasks, flight.sent, flight.ended);
  owner_.OnStepped(options_.id, flight.tasks, seconds);
}

absl::Status GroupRunner::WaitForStep() {
  const Flight flight = flights_.front();
  flights_.erase(flights_.begin());
  const absl::StatusOr<double> stepped = WaitFor(flight);
  if (stepped.ok()) {
    TellStepped(flight, *stepped);
    return absl::OkStatus();
  }
  if (EndsGroup(stepped.status())) return stepped.status();
  owner_.OnStepped(options_.id, {}, 0);
  std::set<TaskId> failed(flight.tasks.begin(), flight.tasks.end());
  // A later step with one of them in it fails too, and then has not been made for the others in it either.
  for (const Flight& later : std::exchange(flights_, {})) {
    const absl::StatusOr<double> made = WaitFor(later);
    if (made.ok()) {
      TellStepped(later, *made);
      continue;
    }
    if (EndsGroup(made.status())) return made.status();
    owner_.OnStepped(options_.id, {}, 0);
    failed.insert(later.tasks.begin(), later.tasks.end());
  }
  std::erase_if(failed, [this](TaskId task) { return !running_.contains(task); });
  const std::vector<TaskId> tasks(failed.begin(), failed.end());
  if (tasks.size() == 1) {
    owner_.OnFailed(options_.id, tasks[0], AfterStart(stepped.status()));
  } else {
    owner_.OnBatchFailed(options_.id, tasks, AfterStart(stepped.status()));
  }
  for (const TaskId task : tasks) {
    if (absl::Status ended = End(task); !ended.ok()) return ended;
  }
  return absl::OkStatus();
}

absl::Status GroupRunner::ShowPreviews(const std::vector<TaskId>& tasks) {
  for (const TaskId task : tasks) {
    const auto found = running_.find(task);
    if (found == running_.end()) continue;
    const Running& running = found->second;
    if (!std::ranges::binary_search(running.task.preview_after, running.sent)) continue;
    const absl::Time sent = trace_.Now();
    const absl::StatusOr<DecodedPicture> picture = group_->Decode(task, running.started);
    Answered();
    if (!picture.ok() && IsDead(picture.status(), *group_)) return picture.status();
    trace_.OnDecoded(task, "preview", sent);
    if (picture.ok()) owner_.OnPreview(options_.id, task, picture->image);
  }
  return absl::OkStatus();
}

absl::Status GroupRunner::Decode(TaskId task) {
  const absl::Time sent = trace_.Now();
  absl::StatusOr<DecodedPicture> picture = group_->Decode(task, running_.at(task).started);
  Answered();
  if (!picture.ok()) {
    if (IsDead(picture.status(), *group_)) return picture.status();
    owner_.OnFailed(options_.id, task, AfterStart(picture.status()));
  } else {
    has_made_images_ = true;
    trace_.OnDecoded(task, "decode", sent);
    owner_.OnDecoded(options_.id, task, std::move(picture->image), running_.at(task).started, picture->seconds);
  }
  return End(task);
}

absl::Status GroupRunner::End(TaskId task) {
  trace_.OnEnded(task);
  if (running_.erase(task) > 0) {
    const absl::Status ended = group_->EndJob(task);
    Answered();
    if (!ended.ok()) return ended;
  }
  owner_.OnEnded(options_.id, task);
  return absl::OkStatus();
}

absl::Status GroupRunner::AnswerProbes() {
  std::vector<std::shared_ptr<std::promise<absl::Status>>> probes;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    probes = std::exchange(probes_, {});
  }
  if (probes.empty()) return absl::OkStatus();
  while (!flights_.empty()) {
    if (absl::Status stepped = WaitForStep(); !stepped.ok()) return stepped;
  }
  const absl::Status status = MakeProbeStep();
  for (const auto& probe : probes) probe->set_value(status);
  return !status.ok() && IsDead(status, *group_) ? status : absl::OkStatus();
}

absl::Status GroupRunner::MakeProbeStep() {
  const JobParameters smallest = ProbeJob(options_.model, CanariesFor(options_.model, 1)[0]);
  absl::Status status = group_->StartJob(kProbeJob, smallest).status();
  if (!status.ok()) return status;
  const absl::StatusOr<uint64_t> sequence = group_->SendStep({kProbeJob});
  status = sequence.ok() ? group_->WaitForStep(*sequence).status() : sequence.status();
  const absl::Status ended = group_->EndJob(kProbeJob);
  if (IsDead(ended, *group_)) status.Update(ended);
  return status;
}

absl::Status GroupRunner::Probe(absl::Duration patience) {
  auto probe = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> answer = probe->get_future();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (State() != GroupState::kReady)
      return absl::UnavailableError(absl::StrCat("group ", options_.name, " is ", GroupStateName(State())));
    probes_.push_back(std::move(probe));
  }
  if (answer.wait_for(absl::ToChronoMilliseconds(patience)) != std::future_status::ready) {
    return absl::DeadlineExceededError(absl::StrCat("group ", options_.name, " gave no answer"));
  }
  const absl::Status status = answer.get();
  if (status.ok()) return status;
  return absl::UnavailableError(absl::StrCat("group ", options_.name, ": ", std::string(status.message())));
}

}  // namespace tessera
