#include "server/serving/group_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "server/workers/last_output.h"

namespace tessera {
namespace {

// A group that has made an image, or stood ready for so long, starts again at once when it dies.
constexpr absl::Duration kHealthy = absl::Minutes(5);
// Starts that fail because a worker dies or hangs, in a row, until the group takes no more jobs.
constexpr int kUnluckyStarts = 3;

// Whether somebody has to change something before it can start: its files, its layout or its device.
bool NeedsAChange(const absl::Status& start) {
  return start.code() != absl::StatusCode::kUnavailable && start.code() != absl::StatusCode::kDeadlineExceeded;
}

}  // namespace

GroupRunner::GroupRunner(const GroupRunnerOptions& options, GroupOwner& owner, EventLog log)
    : options_(options),
      owner_(owner),
      log_([log = std::move(log), name = options.name, model = options.model_name](LogLine line) {
        line.event = "group";
        line.fields["group"] = name;
        line.fields["model"] = model;
        log(line);
      }),
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
  changed_.wait_for(lock, absl::ToChronoMilliseconds(duration), [this] { return stopping_ || try_now_; });
}

void GroupRunner::TryNow() {
  std::lock_guard<std::mutex> lock(mutex_);
  try_now_ = true;
  changed_.notify_all();
}

void GroupRunner::SetState(GroupState state, const std::string& reason) {
  const std::string name(GroupStateName(state));
  trace_.OnState(name);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    state_ = state;
    reason_ = WithoutLastOutput(reason);
  }
  const LogLevel level = state == GroupState::kRefused                         ? LogLevel::kError
                         : state == GroupState::kRestarting && !reason.empty() ? LogLevel::kWarning
                                                                               : LogLevel::kInfo;
  log_({level,
        absl::StrCat("group ", options_.name, ": ", name, reason.empty() ? "" : ": ", reason),
        {{"state", name}, {"reason", reason}}});
}

GroupState GroupRunner::State() const {
  const bool died = state_ == GroupState::kReady && (group_ == nullptr || !group_->health().ok());
  return died ? GroupState::kRestarting : state_;
}

GroupInfo GroupRunner::Info() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {.name = options_.name,
          .model = options_.model_name,
          .layout = LayoutText(layout_),
          .dtype = options_.load.dtype,
          .devices = {options_.load.device},
          .state = State(),
          .reason = reason_,
          .certificate = layout_ == Layout() ? "not needed"
                         : certified_        ? "certified"
                                             : "uncertified",
          .restarts = restarts_};
}

bool GroupRunner::is_ready() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return State() == GroupState::kReady;
}

Layout GroupRunner::layout() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return layout_;
}

void GroupRunner::Replace(const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != GroupState::kReady || group_ == nullptr) return;
  replaced_ = true;
  group_->End(reason);
}

absl::Duration GroupRunner::SinceLastAnswer() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return SteadyNow() - answered_;
}

absl::Duration GroupRunner::ReloadTime() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return reload_time_;
}

void GroupRunner::Answered() {
  std::lock_guard<std::mutex> lock(mutex_);
  answered_ = SteadyNow();
}

void GroupRunner::Run() {
  absl::Duration back_off = options_.first_back_off;
  int failed_starts = 0;  // in a row
  while (!Stopping()) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      try_now_ = false;
    }
    absl::Status status = Open();
    const absl::Duration opened = SteadyNow();
    const bool ready = status.ok();
    bool replaced = false;
    if (ready) {
      Answered();
      SetState(GroupState::kReady);
      owner_.OnReady(options_.id, room_);
      status = Work();
      if (!Stopping()) SetState(GroupState::kRestarting, std::string(status.message()));
      const bool guard = status.code() == absl::StatusCode::kDataLoss;
      if (guard) GiveUpLayout(std::string(status.message()));
      {
        std::lock_guard<std::mutex> lock(mutex_);
        replaced = std::exchange(replaced_, false);
      }
      owner_.OnDied(options_.id, status, guard || replaced);
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
    failed_starts = ready ? 0 : failed_starts + 1;
    if (!ready) {
      const bool refused = NeedsAChange(status) || failed_starts >= kUnluckyStarts;
      if (refused) owner_.OnRefused(options_.id);
      SetState(refused ? GroupState::kRefused : GroupState::kRestarting, std::string(status.message()));
    }
    if (std::exchange(has_made_images_, false) || replaced || (ready && SteadyNow() - opened > kHealthy)) {
      back_off = options_.first_back_off;
    } else {
      Sleep(back_off);
      back_off = std::min(2 * back_off, options_.longest_back_off);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    ++restarts_;
  }
  SetState(GroupState::kStopped);
}

}  // namespace tessera
