#include "server/serving/group_session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"
#include "control/parameters/loaded.h"
#include "control/protocol/job_commands.h"
#include "server/api/generation_request.h"
#include "server/api/request_fields.h"
#include "server/verification/probe_pictures.h"
#include "server/verification/verification.h"
#include "server/workers/worker_process.h"

namespace tessera::server {
namespace {

// How long workers outlive a server that crashed.
constexpr absl::Duration kOrphanGracePeriod = absl::Seconds(10);
// Timeout of the connection to workers that already listen.
constexpr absl::Duration kAdoptionTimeout = absl::Seconds(5);
constexpr absl::Duration kStartTimeout = absl::Seconds(60);

}  // namespace

GroupSession::GroupSession(const GroupRunnerOptions& options, const base::EventLog& log, GroupTrace& trace,
                           OnState on_state)
    : options_(options),
      log_(log),
      trace_(trace),
      on_state_(std::move(on_state)),
      record_(options.records, options.name),
      layout_(options.layout) {}

absl::Status GroupSession::Open() {
  RETURN_IF_ERROR(CheckLayout());
  if (std::exchange(may_adopt_, false)) {
    absl::Status adopted = Adopt();
    if (adopted.ok()) return adopted;
    RETURN_IF_ERROR(Use(nullptr));
    if (!absl::IsNotFound(adopted)) {
      log_(absl::StrCat("group ", options_.name,
                        ": workers of the previous server are not adopted: ", std::string(adopted.message())));
    }
  }
  return Load();
}

void GroupSession::Close() {
  std::shared_ptr<WorkerGroup> ended;
  {
    const std::lock_guard lock(mutex_);
    ended = std::exchange(group_, nullptr);
  }
  ended.reset();
  trace_.OnWorkers({});
  record_.Remove();
}

void GroupSession::GiveUpLayout(const std::string& reason) {
  if (layout() == parallel::Layout()) return;
  const absl::Status revoked = CertificateFolder(options_.certificates).Revoke(subject_);
  log_({base::LogLevel::kError, absl::StrCat("group ", options_.name, ": layout ", subject_.layout,
                                             " is abandoned, one rank continues: ", reason,
                                             revoked.ok() ? "" : absl::StrCat("; ", std::string(revoked.message())))});
  const std::lock_guard lock(mutex_);
  layout_ = parallel::Layout();
}

WorkerGroupOptions GroupSession::OptionsFor(const parallel::Layout& layout) const {
  return {.layout = layout,
          .progress = options_.progress,
          .owner = options_.owner,
          .devices = options_.load.device,
          .hosts = options_.hosts};
}

// Workers on other hosts have no orphan grace period: they end with the server.
WorkerGroupOptions GroupSession::ServingOptions() const {
  WorkerGroupOptions options = OptionsFor(layout());
  if (!options_.records.empty() && !IsOnNodes(options_.load.device)) options.orphan_grace_period = kOrphanGracePeriod;
  return options;
}

absl::Status GroupSession::Use(const std::shared_ptr<WorkerGroup>& group) {
  std::shared_ptr<WorkerGroup> before;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  if (killed_) return absl::CancelledError("the server is stopping");
  before = std::exchange(group_, group);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<WorkerGroup>> GroupSession::Start(const WorkerGroupOptions& options) {
  ASSIGN_OR_RETURN(std::shared_ptr<WorkerGroup> group, WorkerGroup::Start(options));
  RETURN_IF_ERROR(Use(group));
  if (options.orphan_grace_period > absl::ZeroDuration()) KeepRecord(/*loaded=*/false);
  RETURN_IF_ERROR(group->Connect(kStartTimeout));
  group->Predict(options_.model);
  trace_.OnWorkers(group->Pids());
  return group;
}

absl::Status GroupSession::CheckLayout() {
  VerificationRequest request = {.model = options_.model, .load = options_.load, .layout = layout()};
  const bool has_subject =
      request.layout != parallel::Layout() || request.load.placement.products != control::Products::kPlain;
  if (has_subject && NeedsIdentity(request.load)) {
    ASSIGN_OR_RETURN(const std::shared_ptr<WorkerGroup> group, Start(OptionsFor(parallel::Layout())));
    ASSIGN_OR_RETURN(request.identity, group->Identify(request.load.device, request.layout.ranks()));
    RETURN_IF_ERROR(group->Shutdown());
  }
  ASSIGN_OR_RETURN(subject_, SubjectOf(request, WorkerProgram()));
  const auto open = [this](const parallel::Layout& layout) { return Start(OptionsFor(layout)); };
  const VerificationHost host = {
      .open = open, .report = [this](const std::string& text) { on_state_(GroupState::kCertifying, text); }};
  const auto warn = [this](const std::string& warning) { log_({base::LogLevel::kWarning, warning}); };
  ASSIGN_OR_RETURN(const LayoutCertification certification,
                   Certify(request, subject_, options_.certify, CertificateFolder(options_.certificates), host, warn));
  const std::lock_guard lock(mutex_);
  certification_ = certification;
  return absl::OkStatus();
}

absl::Status GroupSession::Load() {
  RETURN_IF_ERROR(Use(nullptr));  // workers that proved the layout have loaded the model, too
  on_state_(GroupState::kLoading, "");
  const absl::Duration began = base::SteadyNow();
  ASSIGN_OR_RETURN(const std::shared_ptr<WorkerGroup> group, Start(ServingOptions()));
  ASSIGN_OR_RETURN(const control::Loaded loaded, group->Load(options_.load));
  device_memory_ = loaded.memory_budget;
  if (absl::Status warm = MakeProbePicture(); !warm.ok()) {
    if (absl::IsDataLoss(warm)) GiveUpLayout(std::string(warm.message()));
    return absl::Status(warm.code(), absl::StrCat("its first picture failed: ", warm.message()));
  }
  RETURN_IF_ERROR(MakeWarmupSteps());
  ASSIGN_OR_RETURN(const std::string digest, group->Digest());
  RETURN_IF_ERROR(AcceptContents(digest));
  {
    const std::lock_guard lock(mutex_);
    times_.reload = base::SteadyNow() - began;
  }
  KeepRecord(/*loaded=*/true);
  return absl::OkStatus();
}

// Workers that are found but not adopted are ended, because they hold the memory that the model needs.
absl::Status GroupSession::Adopt() {
  if (options_.records.empty() || IsOnNodes(options_.load.device))
    return absl::NotFoundError("workers end with the server");
  ASSIGN_OR_RETURN(const GroupRecord record, record_.Find());
  ASSIGN_OR_RETURN(const std::shared_ptr<WorkerGroup> group, WorkerGroup::Adopt(ServingOptions(), record.workers));
  if (!record.loaded) return absl::FailedPreconditionError("they have not loaded their model");
  if (record.subject != subject_ || record.load != LoadText(options_.load)) {
    return absl::FailedPreconditionError("they were started with other options");
  }
  if (record.files != options_.files) return absl::FailedPreconditionError("the model's files were replaced since");
  RETURN_IF_ERROR(AcceptContents(record.contents));
  RETURN_IF_ERROR(Use(group));
  RETURN_IF_ERROR(group->Connect(kAdoptionTimeout));
  group->Predict(options_.model);
  RETURN_IF_ERROR(group->Resume());
  device_memory_ = record.memory_budget;
  trace_.OnWorkers(group->Pids());
  KeepRecord(/*loaded=*/true);
  log_(absl::StrCat("group ", options_.name, ": workers of the previous server are adopted with their model"));
  return absl::OkStatus();
}

absl::Status GroupSession::AcceptContents(const std::string& contents) {
  if (options_.contents != nullptr) {
    RETURN_IF_ERROR(options_.contents->Accept(options_.load.model + " " + options_.files, contents));
  }
  const std::lock_guard lock(mutex_);
  contents_ = contents;
  return absl::OkStatus();
}

// A group without a record serves as well, but cannot be adopted.
void GroupSession::KeepRecord(bool loaded) {
  if (options_.records.empty() || IsOnNodes(options_.load.device)) return;
  const GroupRecord record = {.subject = subject_,
                              .load = LoadText(options_.load),
                              .files = options_.files,
                              .contents = contents(),
                              .workers = group_->Identities(),
                              .loaded = loaded,
                              .memory_budget = device_memory_};
  Reach(options_.at_point, "record.before");
  if (absl::Status kept = record_.Keep(record); !kept.ok()) {
    log_(absl::StrCat("group ", options_.name, ": ", std::string(kept.message())));
  }
  Reach(options_.at_point, "record.after");
}

absl::Status GroupSession::MakeProbePicture() {
  control::JobParameters job = ProbeJob(options_.model, CanariesFor(options_.model, 1)[0]);
  ASSIGN_OR_RETURN(const ProbePictures pictures, ProbePictures::For(options_.model.pictures));
  job.images = pictures.images();
  job.mask = pictures.mask();
  const absl::Status made = MakeSteps(job, /*decode=*/true);
  if (!absl::IsInvalidArgument(made)) return made;
  // Some schedules have at least two steps: those whose last one must begin below pure noise.
  job.steps = 2;
  return MakeSteps(job, /*decode=*/true);
}

// From the second pass of a size on, a device replays it as a graph, so each size needs two steps.
absl::Status GroupSession::MakeWarmupSteps() {
  constexpr int kSteps = 2;
  ASSIGN_OR_RETURN(const ProbePictures pictures, ProbePictures::For(options_.model.pictures));
  for (const PictureSize& size : options_.warmup) {
    const ImageRequest request = {
        .prompt = ProbePrompt(options_.model), .width = size.width, .height = size.height, .steps = kSteps};
    absl::StatusOr<control::JobParameters> job = Validate(request, options_.model);
    if (job.ok()) {
      job->images = pictures.images();
      job->mask = pictures.mask();
    }
    const absl::Status made = job.ok() ? MakeSteps(*job, /*decode=*/false) : job.status();
    if (made.ok()) continue;
    return absl::Status(made.code(),
                        absl::StrCat("its warm-up at ", size.width, "x", size.height, " failed: ", made.message()));
  }
  return absl::OkStatus();
}

absl::Status GroupSession::MakeSteps(const control::JobParameters& job, bool decode) {
  ASSIGN_OR_RETURN(const control::JobStarted started, group_->StartJob(control::kProbeJob, job));
  absl::Status status;
  for (int32_t step = 0; step < started.steps && status.ok(); ++step) {
    const absl::StatusOr<uint64_t> sequence = group_->SendStep({control::kProbeJob});
    status = sequence.ok() ? group_->WaitForStep(*sequence).status() : sequence.status();
  }
  if (decode && status.ok()) status = group_->Decode(control::kProbeJob, started).status();
  const absl::Status ended = group_->EndJob(control::kProbeJob);
  if (absl::IsUnavailable(ended) || !group_->health().ok()) status.Update(ended);
  return status;
}

void GroupSession::Answered() {
  const std::lock_guard lock(mutex_);
  times_.answered = base::SteadyNow();
}

void GroupSession::Kill() {
  const std::lock_guard lock(mutex_);
  killed_ = true;
  if (group_ != nullptr) group_->Kill();
}

bool GroupSession::End(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (group_ != nullptr) group_->End(reason);
  return group_ != nullptr;
}

bool GroupSession::is_alive() const {
  const std::lock_guard lock(mutex_);
  return group_ != nullptr && group_->health().ok();
}

parallel::Layout GroupSession::layout() const {
  const std::lock_guard lock(mutex_);
  return layout_;
}

LayoutCertification GroupSession::certification() const {
  const std::lock_guard lock(mutex_);
  return certification_;
}

std::string GroupSession::contents() const {
  const std::lock_guard lock(mutex_);
  return contents_;
}

absl::Duration GroupSession::SinceLastAnswer() const {
  const std::lock_guard lock(mutex_);
  return base::SteadyNow() - times_.answered;
}

std::vector<std::optional<control::DeviceMemory>> GroupSession::DeviceMemories() const {
  const std::lock_guard lock(mutex_);
  return group_ == nullptr ? std::vector<std::optional<control::DeviceMemory>>() : group_->DeviceMemories();
}

double GroupSession::LoadedPart() const {
  const std::lock_guard lock(mutex_);
  return group_ == nullptr ? 0 : group_->LoadedPart();
}

absl::Duration GroupSession::ReloadTime() const {
  const std::lock_guard lock(mutex_);
  return times_.reload;
}

}  // namespace tessera::server
