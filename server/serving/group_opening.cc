// How a group runner comes to workers that can serve: a proven layout, and a model that is loaded or adopted.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "server/serving/group_runner.h"
#include "server/workers/worker_process.h"

namespace tessera {
namespace {

// How long workers outlive a server that ends without a word.
constexpr absl::Duration kLinger = absl::Seconds(10);
// For the connection to workers that listen already.
constexpr absl::Duration kAdoptionPatience = absl::Seconds(5);

}  // namespace

// What the guard has stopped is no longer proven. One rank needs no proof, so the jobs go on at once.
void GroupRunner::GiveUpLayout(const std::string& reason) {
  if (layout() == Layout()) return;
  const absl::Status revoked = CertificateFolder(options_.certificates).Revoke(subject_);
  log_({LogLevel::kError,
        absl::StrCat("group ", options_.name, ": layout ", subject_.layout, " is given up, one rank goes on: ", reason,
                     revoked.ok() ? "" : absl::StrCat("; ", std::string(revoked.message())))});
  std::lock_guard<std::mutex> lock(mutex_);
  layout_ = Layout();
}

WorkerGroupOptions GroupRunner::ServingOptions() const {
  return {.layout = layout(),
          .progress = options_.progress,
          .linger = options_.records.empty() ? absl::ZeroDuration() : kLinger,
          .owner = options_.owner};
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
    return OpenGroup({.layout = layout, .progress = options_.progress, .owner = options_.owner});
  };
  const VerificationHost host = {.open = open,
                                 .tell = [this](const std::string& text) { SetState(GroupState::kCertifying, text); }};
  const absl::StatusOr<bool> certified =
      Certify(request, *subject, options_.certify, CertificateFolder(options_.certificates), host,
              [this](const std::string& warning) {
                log_({LogLevel::kWarning, warning});
              });
  if (!certified.ok()) return certified.status();
  std::lock_guard<std::mutex> lock(mutex_);
  certified_ = *certified;
  return absl::OkStatus();
}

absl::Status GroupRunner::Open() {
  if (absl::Status checked = CheckLayout(); !checked.ok()) return checked;
  if (std::exchange(may_adopt_, false)) {
    absl::Status adopted = Adopt();
    if (adopted.ok()) return adopted;
    if (Stopping()) return absl::CancelledError("the server ends");
    if (adopted.code() != absl::StatusCode::kNotFound) {
      log_(absl::StrCat("group ", options_.name,
                        ": workers of the server before are not adopted: ", std::string(adopted.message())));
    }
    Use(nullptr).IgnoreError();
  }
  SetState(GroupState::kLoading);
  const absl::Duration began = SteadyNow();
  const absl::StatusOr<std::shared_ptr<WorkerGroup>> group = OpenGroup(ServingOptions());
  if (!group.ok()) return group.status();
  const absl::StatusOr<Loaded> loaded = (*group)->Load(options_.load);
  if (!loaded.ok()) return loaded.status();
  room_ = loaded->room;
  if (absl::Status warm = WarmUp(); !warm.ok()) return warm;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    reload_time_ = SteadyNow() - began;
  }
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
  room_ = record->room;
  trace_.OnWorkers(group->Pids());
  KeepRecord(/*loaded=*/true);
  log_(absl::StrCat("group ", options_.name, ": workers of the server before are adopted with their model"));
  return absl::OkStatus();
}

// Without it the group serves as well, and is not adopted.
void GroupRunner::KeepRecord(bool loaded) {
  if (options_.records.empty()) return;
  const GroupRecord record = {.subject = subject_,
                              .load = LoadText(options_.load),
                              .workers = group_->Identities(),
                              .loaded = loaded,
                              .room = room_};
  Reach(options_.at_point, "record.before");
  if (absl::Status kept = record_.Keep(record); !kept.ok()) {
    log_(absl::StrCat("group ", options_.name, ": ", std::string(kept.message())));
  }
  Reach(options_.at_point, "record.after");
}

absl::Status GroupRunner::WarmUp() {
  const absl::Status status = MakeProbeStep();
  if (status.code() == absl::StatusCode::kDataLoss) GiveUpLayout(std::string(status.message()));
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat("its first step failed: ", status.message()));
}

}  // namespace tessera
