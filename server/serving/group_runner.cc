#include "server/serving/group_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/threads/batch_scheduling.h"
#include "base/threads/start_thread.h"
#include "base/time/steady_time.h"
#include "server/serving/batch_proof.h"
#include "server/verification/latent_distance.h"
#include "server/workers/last_output.h"

namespace tessera::server {
namespace {

// A group that has made an image, or has been ready for this long, restarts at once when it dies.
constexpr absl::Duration kHealthy = absl::Minutes(5);
// After this many consecutive starts that failed because a worker died or hung, the group takes no more jobs.
constexpr int kUnluckyStarts = 3;
constexpr absl::Duration kLongestBackOff = absl::Seconds(60);

// Returns whether the group cannot start until its files, its layout or its device change.
bool NeedsAChange(const absl::Status& start) {
  return start.code() != absl::StatusCode::kUnavailable && start.code() != absl::StatusCode::kDeadlineExceeded;
}

// Returns whether encoders are read for each use and encoded prompts are cached.
bool ReadsEncodersForEachUse(const control::LoadParameters& load) {
  return load.placement.text_encoders == control::ComponentPlacement::kUnloaded && load.prompt_cache_bytes > 0;
}

}  // namespace

GroupRunner::GroupRunner(const GroupRunnerOptions& options, GroupOwner& owner, base::EventLog log)
    : options_(options),
      owner_(owner),
      log_([log = std::move(log), name = options.name, model = options.model_name](base::LogLine line) {
        line.event = "group";
        line.fields["group"] = name;
        line.fields["model"] = model;
        log(line);
      }),
      trace_(options.trace, options.name, options.layout.ranks(), options.spans),
      session_(options_, log_, trace_,
               [this](GroupState state, const std::string& reason) { SetState(state, reason); }),
      thread_(base::StartThread([this] { RunSessions(); })) {}

GroupRunner::~GroupRunner() { Stop(); }

void GroupRunner::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    session_.Kill();
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool GroupRunner::Stopping() const {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

void GroupRunner::TryNow() {
  const std::lock_guard lock(mutex_);
  try_now_ = true;
  changed_.notify_all();
}

void GroupRunner::SetState(GroupState state, const std::string& reason) {
  const std::string name(GroupStateName(state));
  trace_.OnState(name);
  {
    const std::lock_guard lock(mutex_);
    state_ = state;
    reason_ = WithoutLastOutput(reason);
  }
  const base::LogLevel level = state == GroupState::kRefused                         ? base::LogLevel::kError
                               : state == GroupState::kRestarting && !reason.empty() ? base::LogLevel::kWarning
                                                                                     : base::LogLevel::kInfo;
  log_({level,
        absl::StrCat("group ", options_.name, ": ", name, reason.empty() ? "" : ": ", reason),
        {{"state", name}, {"reason", reason}}});
}

GroupState GroupRunner::State() const {
  return state_ == GroupState::kReady && !session_.is_alive() ? GroupState::kRestarting : state_;
}

GroupProgress GroupRunner::ProgressNow() const {
  const GroupState state = State();
  const double loaded = state == GroupState::kLoading ? session_.LoadedPart() : 0;
  return {.state = state, .loaded = state == GroupState::kReady ? 1 : loaded};
}

GroupProgress GroupRunner::Progress() const {
  const std::lock_guard lock(mutex_);
  return ProgressNow();
}

GroupInfo GroupRunner::Info() const {
  const parallel::Layout layout = session_.layout();
  const std::lock_guard lock(mutex_);
  const GroupProgress progress = ProgressNow();
  return {.name = options_.name,
          .model = options_.model_name,
          .layout = parallel::LayoutText(layout),
          .dtype = base::EnumName(options_.load.dtype),
          .devices = {options_.load.device},
          .state = progress.state,
          .loaded = progress.loaded,
          .reason = reason_,
          .certificate = layout == parallel::Layout()         ? "not needed"
                         : session_.certification().certified ? "certified"
                                                              : "uncertified",
          .restarts = restarts_,
          .device_memories = session_.DeviceMemories()};
}

void GroupRunner::Replace(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (state_ == GroupState::kReady && session_.End(reason)) replaced_ = true;
}

void GroupRunner::RunSessions() {
  base::UseBatchScheduling();  // the next steps are queued already when an answer comes
  absl::Duration back_off = options_.first_back_off;
  int failed_starts = 0;  // in a row
  while (!Stopping()) {
    const Run run = RunSession();
    if (Stopping()) break;
    failed_starts = run.was_ready ? 0 : failed_starts + 1;
    if (!run.was_ready) {
      const bool refused = NeedsAChange(run.status) || failed_starts >= kUnluckyStarts;
      if (refused) owner_.OnRefused(options_.id);
      SetState(refused ? GroupState::kRefused : GroupState::kRestarting, std::string(run.status.message()));
    }
    std::unique_lock lock(mutex_);
    if (run.was_healthy) {
      back_off = options_.first_back_off;
    } else {
      changed_.wait_for(lock, absl::ToChronoMilliseconds(back_off), [this] { return stopping_ || try_now_; });
      back_off = std::min(2 * back_off, kLongestBackOff);
    }
    ++restarts_;
  }
  SetState(GroupState::kStopped);
}

GroupRunner::Run GroupRunner::RunSession() {
  {
    const std::lock_guard lock(mutex_);
    try_now_ = false;
  }
  Run run = {.status = session_.Open()};
  const absl::Duration opened = base::SteadyNow();
  run.was_ready = run.status.ok();
  if (run.was_ready) {
    session_.Answered();
    SetState(GroupState::kReady);
    owner_.OnReady(options_.id, session_.device_memory());
    run.status = Work(run.was_healthy);
    if (!Stopping()) SetState(GroupState::kRestarting, std::string(run.status.message()));
    const bool guard = absl::IsDataLoss(run.status);
    if (guard) session_.GiveUpLayout(std::string(run.status.message()));
    bool replaced = false;
    {
      const std::lock_guard lock(mutex_);
      replaced = std::exchange(replaced_, false);
    }
    const bool lost_host = session_.workers().host_lost();
    owner_.OnDied(options_.id, run.status, guard || replaced || lost_host);
    run.was_healthy = run.was_healthy || replaced || base::SteadyNow() - opened > kHealthy;
  }
  session_.Close();
  for (const ProbeAnswer& probe : TakeProbes()) probe->set_value(run.status);
  return run;
}

absl::Status GroupRunner::Work(bool& has_made_images) {
  PredictionProof proof(session_.workers(), BatchBound(options_.load.dtype, options_.load.device), log_, options_.name);
  StepLoop loop(session_.workers(), owner_, trace_,
                {.group = options_.id,
                 .data_loss_ends_group = layout() != parallel::Layout(),
                 .proof = &proof,
                 .answered = [this] { session_.Answered(); },
                 .next_prompts = ReadsEncodersForEachUse(options_.load) ? options_.next_prompts : nullptr});
  absl::Status status;
  while (status.ok() && !Stopping()) {
    session_.Answered();
    // Workers may die while no command is pending: a group that is known to be dead gets no task.
    status = session_.workers().health();
    if (status.ok()) status = AnswerProbes(loop);
    if (status.ok()) status = loop.Turn();
  }
  has_made_images = loop.has_made_images();
  return status.ok() ? absl::CancelledError("the server is stopping") : status;
}

std::vector<GroupRunner::ProbeAnswer> GroupRunner::TakeProbes() {
  const std::lock_guard lock(mutex_);
  return std::exchange(probes_, {});
}

absl::Status GroupRunner::AnswerProbes(StepLoop& loop) {
  const std::vector<ProbeAnswer> probes = TakeProbes();
  if (probes.empty()) return absl::OkStatus();
  if (absl::Status finished = loop.FinishSteps(); !finished.ok()) {
    for (const ProbeAnswer& probe : probes) probe->set_value(finished);
    return finished;
  }
  const absl::Status status = session_.MakeProbePicture();
  for (const ProbeAnswer& probe : probes) probe->set_value(status);
  return absl::IsUnavailable(status) || !session_.is_alive() ? status : absl::OkStatus();
}

absl::Status GroupRunner::Probe(absl::Duration timeout) {
  auto probe = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> answer = probe->get_future();
  {
    const std::lock_guard lock(mutex_);
    if (State() != GroupState::kReady) {
      return absl::UnavailableError(absl::StrCat("group ", options_.name, " is ", GroupStateName(State())));
    }
    probes_.push_back(std::move(probe));
  }
  if (answer.wait_for(absl::ToChronoMilliseconds(timeout)) != std::future_status::ready) {
    return absl::DeadlineExceededError(absl::StrCat("group ", options_.name, " gave no answer"));
  }
  absl::Status status = answer.get();
  if (status.ok()) return status;
  return absl::UnavailableError(absl::StrCat("group ", options_.name, ": ", std::string(status.message())));
}

}  // namespace tessera::server
