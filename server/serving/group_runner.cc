#include "server/serving/group_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/steady_time.h"
#include "server/worker_process.h"

namespace tessera {
namespace {

// How long workers outlive a server that ends without a word.
constexpr absl::Duration kLinger = absl::Seconds(10);
// For the connection to workers that listen already.
constexpr absl::Duration kAdoptionPatience = absl::Seconds(5);
// A group that has made an image, or stood ready for so long, starts again at once when it dies.
constexpr absl::Duration kHealthy = absl::Minutes(5);

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
  if (options_.at_point) options_.at_point("record.before");
  if (absl::Status kept = record_.Keep(record); !kept.ok()) {
    log_(absl::StrCat("group ", options_.name, ": ", std::string(kept.message())));
  }
  if (options_.at_point) options_.at_point("record.after");
}

}  // namespace tessera
