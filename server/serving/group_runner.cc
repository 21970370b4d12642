#include "server/serving/group_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/steady_time.h"

namespace tessera {
namespace {

// A group that has made an image, or stood ready for so long, starts again at once when it dies.
constexpr absl::Duration kHealthy = absl::Minutes(5);

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
  changed_.wait_for(lock, absl::ToChronoMilliseconds(duration), [this] { return stopping_; });
}

void GroupRunner::SetState(const std::string& state, const std::string& reason) {
  trace_.OnState(state);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    state_ = state;
    reason_ = reason;
  }
  const LogLevel level = state == "refused"                        ? LogLevel::kError
                         : state == kRestarting && !reason.empty() ? LogLevel::kWarning
                                                                   : LogLevel::kInfo;
  log_({level,
        absl::StrCat("group ", options_.name, ": ", state, reason.empty() ? "" : ": ", reason),
        {{"state", state}, {"reason", reason}}});
}

std::string GroupRunner::State() const {
  const bool died = state_ == kReady && (group_ == nullptr || !group_->health().ok());
  return died ? kRestarting : state_;
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
  return State() == kReady;
}

bool GroupRunner::is_refused() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_ == "refused";
}

Layout GroupRunner::layout() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return layout_;
}

void GroupRunner::Run() {
  absl::Duration back_off = options_.first_back_off;
  while (!Stopping()) {
    absl::Status status = Open();
    const absl::Duration opened = SteadyNow();
    const bool ready = status.ok();
    if (ready) {
      SetState(kReady);
      owner_.OnReady(options_.id, room_);
      status = Work();
      if (!Stopping()) SetState(kRestarting, std::string(status.message()));
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
    if (!ready) SetState(kRestarting, std::string(status.message()));
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

}  // namespace tessera
