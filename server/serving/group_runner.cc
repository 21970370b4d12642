#include "server/serving/group_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "runtime/steady_time.h"
#include "server/worker_process.h"

namespace tessera {
namespace {

constexpr absl::Duration kIdleWait = absl::Seconds(1);
// How long workers outlive a server that ends without a word.
constexpr absl::Duration kLinger = absl::Seconds(10);
// For the connection to workers that listen already.
constexpr absl::Duration kAdoptionPatience = absl::Seconds(5);
// A group that has made an image, or stood ready for so long, starts again at once when it dies.
constexpr absl::Duration kHealthy = absl::Minutes(5);

// Whether the group is of no more use after a call that ended so.
bool IsDead(const absl::Status& status, WorkerGroup& group) {
  return status.code() == absl::StatusCode::kUnavailable || !group.health().ok();
}

}  // namespace

GroupRunner::GroupRunner(const GroupRunnerOptions& options, GroupOwner& owner,
                         std::function<void(const std::string&)> log)
    : options_(options),
      owner_(owner),
      log_(std::move(log)),
      layout_(options.layout),
      record_(options.records, options.name),
      trace_(options.trace, options.name, options.layout.ranks()),
      thread_([this] { Run(); }) {}

GroupRunner::~GroupRunner() { Stop(); }

void GroupRunner::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    if (group_ != nullptr) group_->Kill();
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool GroupRunner::Stopping() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stopping_;
}

void GroupRunner::Sleep(absl::Duration duration) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoMilliseconds(duration), [this] { return stopping_; });
}

void GroupRunner::SetState(const std::string& state, const std::string& reason) {
  trace_.OnState(state);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    state_ = state;
    reason_ = reason;
  }
  log_(absl::StrCat("group ", options_.name, ": ", state, reason.empty() ? "" : ": ", reason));
}

GroupInfo GroupRunner::Info() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {.name = options_.name,
          .model = options_.model_name,
          .layout = LayoutText(layout_),
          .dtype = options_.load.dtype,
          .devices = {options_.load.device},
          .state = state_,
          .reason = reason_,
          .certificate = layout_ == Layout() ? "not needed"
                         : certified_        ? "certified"
                                             : "uncertified",
          .restarts = restarts_};
}

bool GroupRunner::is_ready() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_ == "ready";
}

bool GroupRunner::is_refused() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_ == "refused";
}

Layout GroupRunner::layout() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return layout_;
}

// What the guard has stopped is no longer proven. One rank needs no proof, so the jobs go on at once.
void GroupRunner::GiveUpLayout(const std::string& reason) {
  if (layout() == Layout()) return;
  const absl::Status revoked = CertificateFolder(options_.certificates).Revoke(subject_);
  log_(absl::StrCat("group ", options_.name, ": layout ", subject_.layout, " is given up, one rank goes on: ", reason,
                    revoked.ok() ? "" : absl::StrCat("; ", std::string(revoked.message()))));
  std::lock_guard<std::mutex> lock(mutex_);
  layout_ = Layout();
}

void GroupRunner::Run() {
  absl::Duration back_off = options_.first_back_off;
  while (!Stopping()) {
    absl::Status status = Open();
    const absl::Duration opened = SteadyNow();
    const bool ready = status.ok();
    if (ready) {
      SetState("ready");
      owner_.OnReady(options_.id);
      status = Work();
      const bool guard = status.code() == absl::StatusCode::kDataLoss;
      if (guard) GiveUpLayout(std::string(status.message()));
      owner_.OnDied(options_.id, status, guard);
    }
    std::shared_ptr<WorkerGroup> ended;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended = std::exchange(group_, nullptr);
      for (const auto& probe : std::exchange(probes_, {})) probe->set_value(status);
    }
    ended.reset();
    trace_.OnWorkers({});
    record_.Remove();
    running_.clear();
    flights_.clear();
    proven_batches_.clear();
    if (Stopping()) break;
    if (!ready && (status.code() == absl::StatusCode::kFailedPrecondition ||
                   status.code() == absl::StatusCode::kInvalidArgument)) {
      owner_.OnRefused(options_.id);
      SetState("refused", std::string(status.message()));
      break;
    }
    SetState("restarting", std::string(status.message()));
    if (std::exchange(has_made_images_, false) || (ready && SteadyNow() - opened > kHealthy)) {
      back_off = options_.first_back_off;
    } else {
      Sleep(back_off);
      back_off = std::min(2 * back_off, options_.longest_back_off);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    ++restarts_;
  }
  if (!is_refused()) SetState("stopped");
}

WorkerGroupOptions GroupRunner::ServingOptions() const {
  return {.layout = layout(),
          .progress = options_.progress,
          .linger = options_.records.empty() ? absl::ZeroDuration() : kLinger};
}

absl::Status GroupRunner::Use(const std::shared_ptr<WorkerGroup>& group) {
  std::shared_ptr<WorkerGroup> before;  // ends without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_) return absl::CancelledError("the server ends");
  before = std::exchange(group_, group);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<WorkerGroup>> GroupRunner::OpenGroup(const WorkerGroupOptions& options) {
  absl::StatusOr<std::unique_ptr<WorkerGroup>> started = WorkerGroup::Start(options);
  if (!started.ok()) return started.status();
  std::shared_ptr<WorkerGroup> group = *std::move(started);
  if (absl::Status used = Use(group); !used.ok()) return used;
  if (options.linger > absl::ZeroDuration()) KeepRecord(/*loaded=*/false);
  if (absl::Status connected = group->Connect(options_.start_patience); !connected.ok()) return connected;
  trace_.OnWorkers(group->Pids());
  return group;
}

absl::Status GroupRunner::CheckLayout() {
  const VerificationRequest request = {.model = options_.model, .load = options_.load, .layout = layout()};
  const absl::StatusOr<CertificateSubject> subject = SubjectOf(request, WorkerProgram());
  if (!subject.ok()) return subject.status();
  subject_ = *subject;
  const auto open = [this](const Layout& layout) {
    return OpenGroup({.layout = layout, .progress = options_.progress});
  };
  const VerificationHost host = {.open = open,
                                 .tell = [this](const std::string& text) { SetState("certifying", text); }};
  const absl::StatusOr<bool> certified =
      Certify(request, *subject, options_.certify, CertificateFolder(options_.certificates), host, log_);
  if (!certified.ok()) return certified.status();
  std::lock_guard<std::mutex> lock(mutex_);
  certified_ = *certified;
  return absl::OkStatus();
}

absl::Status GroupRunner::Open() {
  if (absl::Status checked = CheckLayout(); !checked.ok()) return checked;
  if (std::exchange(may_adopt_, false)) {
    const absl::Status adopted = Adopt();
    if (adopted.ok()) return adopted;
    if (Stopping()) return absl::CancelledError("the server ends");
    if (adopted.code() != absl::StatusCode::kNotFound) {
      log_(absl::StrCat("group ", options_.name,
                        ": workers of the server before are not adopted: ", std::string(adopted.message())));
    }
    Use(nullptr).IgnoreError();
  }
  SetState("loading");
  const absl::StatusOr<std::shared_ptr<WorkerGroup>> group = OpenGroup(ServingOptions());
  if (!group.ok()) return group.status();
  if (absl::Status loaded = (*group)->Load(options_.load).status(); !loaded.ok()) return loaded;
  if (absl::Status warm = WarmUp(); !warm.ok()) return warm;
  KeepRecord(/*loaded=*/true);
  return absl::OkStatus();
}

// Whatever is found and not adopted is ended: it holds the memory that the model needs.
absl::Status GroupRunner::Adopt() {
  if (options_.records.empty()) return absl::NotFoundError("workers end with the server");
  const absl::StatusOr<GroupRecord> record = record_.Find();
  if (!record.ok()) return record.status();
  absl::StatusOr<std::unique_ptr<WorkerGroup>> found = WorkerGroup::Adopt(ServingOptions(), record->workers);
  if (!found.ok()) return found.status();
  const std::shared_ptr<WorkerGroup> group = *std::move(found);
  if (!record->loaded) return absl::FailedPreconditionError("they have not loaded their model");
  if (record->subject != subject_ || record->load != LoadText(options_.load)) {
    return absl::FailedPreconditionError("they were started for something else");
  }
  if (absl::Status used = Use(group); !used.ok()) return used;
  if (absl::Status connected = group->Connect(kAdoptionPatience); !connected.ok()) return connected;
  if (absl::Status resumed = group->Resume(); !resumed.ok()) return resumed;
  trace_.OnWorkers(group->Pids());
  KeepRecord(/*loaded=*/true);
  log_(absl::StrCat("group ", options_.name, ": workers of the server before are adopted with their model"));
  return absl::OkStatus();
}

// Without it the group serves as well, and is not adopted.
void GroupRunner::KeepRecord(bool loaded) {
  if (options_.records.empty()) return;
  const GroupRecord record = {
      .subject = subject_, .load = LoadText(options_.load), .workers = group_->Identities(), .loaded = loaded};
  if (absl::Status kept = record_.Keep(record); !kept.ok()) {
    log_(absl::StrCat("group ", options_.name, ": ", std::string(kept.message())));
  }
}

absl::Status GroupRunner::Work() {
  while (!Stopping()) {
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
  if (distance <= BatchBound(options_.load.dtype)) {
    proven_batches_.insert(shape);
    return true;
  }
  log_(absl::StrCat("group ", options_.name, ": ", tasks.size(), " images of ", shape.width, "x", shape.height,
                    " change each other by ", distance, " in a batch; images of this size are made one by one"));
  owner_.OnBatchDiffers(options_.id, tasks);
  return false;
}

// The seconds that it took.
absl::StatusOr<double> GroupRunner::WaitFor(const Flight& flight) {
  absl::StatusOr<Stepped> stepped = group_->WaitForStep(flight.sequence);
  if (!stepped.ok()) return stepped.status();
  double seconds = stepped->seconds;
  for (const TaskId task : flight.apart) {
    const absl::StatusOr<uint64_t> sequence = group_->SendStep({task});
    if (!sequence.ok()) return sequence.status();
    stepped = group_->WaitForStep(*sequence);
    if (!stepped.ok()) return stepped.status();
    seconds += stepped->seconds;
  }
  return seconds;
}

absl::Status GroupRunner::WaitForStep() {
  const Flight flight = flights_.front();
  flights_.erase(flights_.begin());
  const absl::StatusOr<double> stepped = WaitFor(flight);
  if (stepped.ok()) {
    trace_.OnStepped(flight.tasks, flight.sent, flight.ended);
    owner_.OnStepped(options_.id, flight.tasks, *stepped);
    return absl::OkStatus();
  }
  if (IsDead(stepped.status(), *group_)) return stepped.status();
  // One rank may do what the layout cannot.
  if (stepped.status().code() == absl::StatusCode::kDataLoss && layout() != Layout()) return stepped.status();
  // Steps behind it are of the same jobs or fail likewise; what they say is of no interest.
  for (const Flight& later : std::exchange(flights_, {})) {
    const absl::Status ignored = WaitFor(later).status();
    if (IsDead(ignored, *group_)) return ignored;
    owner_.OnStepped(options_.id, {}, 0);
  }
  owner_.OnStepped(options_.id, {}, 0);
  std::vector<TaskId> tasks;
  for (const TaskId task : flight.tasks) {
    if (running_.contains(task)) tasks.push_back(task);
  }
  if (tasks.size() == 1) {
    owner_.OnFailed(options_.id, tasks[0], stepped.status());
  } else {
    owner_.OnBatchFailed(options_.id, tasks, stepped.status());
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
    if (!picture.ok() && IsDead(picture.status(), *group_)) return picture.status();
    trace_.OnDecoded(task, "preview", sent);
    if (picture.ok()) owner_.OnPreview(options_.id, task, picture->image);
  }
  return absl::OkStatus();
}

absl::Status GroupRunner::Decode(TaskId task) {
  const absl::Time sent = trace_.Now();
  absl::StatusOr<DecodedPicture> picture = group_->Decode(task, running_.at(task).started);
  if (!picture.ok()) {
    if (IsDead(picture.status(), *group_)) return picture.status();
    owner_.OnFailed(options_.id, task, picture.status());
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
    if (absl::Status ended = group_->EndJob(task); !ended.ok()) return ended;
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

absl::Status GroupRunner::WarmUp() {
  const absl::Status status = MakeProbeStep();
  if (status.code() == absl::StatusCode::kDataLoss) GiveUpLayout(std::string(status.message()));
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat("its first step failed: ", status.message()));
}

absl::Status GroupRunner::Probe(absl::Duration patience) {
  auto probe = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> answer = probe->get_future();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_ != "ready") {
      return absl::UnavailableError(absl::StrCat("group ", options_.name, " is ", state_));
    }
    probes_.push_back(std::move(probe));
  }
  if (answer.wait_for(absl::ToChronoMilliseconds(patience)) != std::future_status::ready) {
    return absl::DeadlineExceededError(absl::StrCat("group ", options_.name, " gave no answer"));
  }
  return answer.get();
}

}  // namespace tessera
