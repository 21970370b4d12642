#include "client/cli/session/worker_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/model/model_description.h"
#include "control/parameters/component_files.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/load_parameters.h"
#include "control/parameters/loaded.h"
#include "server/api/field_checks.h"
#include "server/verification/certificate.h"
#include "server/workers/step_loop.h"

namespace tessera::client {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(60);

}  // namespace

// A batch of images of one size and number of steps: all start, each step runs for all, and all are decoded after the
// last.
class WorkerSession::Batch final : public server::StepOwner {
 public:
  Batch(server::TaskId first, absl::Span<const control::JobParameters> batch, const Listener& listener)
      : first_(first), batch_(batch), listener_(listener), pictures_(batch.size()) {
    for (size_t i = 0; i < batch.size(); ++i) left_.push_back(first + i);
  }

  bool is_over() const { return left_.empty() || !error_.ok(); }
  const absl::Status& error() const { return error_; }
  const std::string& activity() const { return activity_; }          // what was running when it failed
  const std::vector<server::TaskId>& left() const { return left_; }  // the workers may still have state of these
  std::vector<Picture> TakePictures() { return std::move(pictures_); }

  server::StepPlan Next(server::GroupId) override {
    if (!error_.ok()) return {};
    if (!std::exchange(has_begun_, true)) return {.start = left_};
    if (sent_ == steps_) return {};
    ++sent_;
    return {.step = left_, .decode = sent_ == steps_ ? left_ : std::vector<server::TaskId>()};
  }
  void WaitForWork(server::GroupId, absl::Duration) override {}
  absl::StatusOr<server::RunnableTask> Claim(server::GroupId, server::TaskId task) override {
    if (!error_.ok()) return error_;
    server::RunnableTask claimed;
    claimed.parameters = std::make_shared<const control::JobParameters>(batch_[task - first_]);
    return claimed;
  }
  std::vector<int32_t> OnStarted(server::GroupId, server::TaskId task, const control::JobStarted& started) override {
    pictures_[task - first_].started = started;
    steps_ = started.steps;
    if (task == first_ + batch_.size() - 1) SetNext();
    if (listener_.started) listener_.started(started);
    if (task != first_ || listener_.preview_every <= 0 || !listener_.preview) return {};
    for (int32_t step = listener_.preview_every; step < steps_; step += listener_.preview_every) {
      preview_after_.push_back(step);
    }
    return preview_after_;
  }
  void OnBatchDiffers(server::GroupId, const std::vector<server::TaskId>&) override {}
  void OnStepped(server::GroupId, const std::vector<server::TaskId>& tasks, double seconds) override {
    if (tasks.empty()) return;  // a step has failed
    ++done_;
    if (std::ranges::binary_search(preview_after_, done_)) {
      activity_ = "a preview was being decoded";
    } else {
      SetNext();
    }
    if (listener_.stepped) listener_.stepped({.completed = done_, .seconds = seconds});
  }
  void OnPreview(server::GroupId, server::TaskId, const control::Frames& image) override {
    SetNext();
    listener_.preview(done_, image);
  }
  void OnPreviewFailed(server::GroupId group, server::TaskId task, const absl::Status& error) override {
    OnFailed(group, task, error);
  }
  void OnDecoded(server::GroupId, server::TaskId task, control::Frames image, const control::JobStarted&,
                 double seconds) override {
    Picture& picture = pictures_[task - first_];
    picture.image = std::move(image);
    picture.decode_seconds = seconds;
    activity_ = "the image was being abandoned";
  }
  void OnFailed(server::GroupId, server::TaskId, const absl::Status& error) override { error_.Update(error); }
  void OnBatchFailed(server::GroupId, const std::vector<server::TaskId>&, const absl::Status& error) override {
    error_.Update(error);
  }
  void OnEnded(server::GroupId, server::TaskId task) override {
    std::erase(left_, task);
    if (error_.ok()) SetNext();
  }

 private:
  void SetNext() {
    activity_ = done_ == steps_ ? "the image was being decoded"
                                : absl::StrCat("step ", done_ + 1, " of ", steps_, " was running");
  }

  const server::TaskId first_;
  const absl::Span<const control::JobParameters> batch_;
  const Listener& listener_;
  std::vector<Picture> pictures_;
  std::vector<server::TaskId> left_;
  std::vector<int32_t> preview_after_;  // of the first image
  bool has_begun_ = false;
  int32_t steps_ = 0;  // that the workers run for each image
  int32_t sent_ = 0;   // steps
  int32_t done_ = 0;   // steps
  std::string activity_ = "the prompt was being encoded";
  absl::Status error_;
};

absl::StatusOr<std::unique_ptr<WorkerSession>> WorkerSession::Start(const Options& options, Interrupts& interrupts) {
  ASSIGN_OR_RETURN(std::unique_ptr<server::WorkerGroup> group,
                   server::WorkerGroup::Start({.layout = options.layout,
                                               .data = options.data,
                                               .show_output = options.verbose,
                                               .timeout = options.command_timeout,
                                               .progress = options.progress}));
  std::unique_ptr<WorkerSession> session(new WorkerSession(std::move(group), interrupts, options.ends_at_interruption));
  absl::Status connected = session->group_->Connect(kStartTimeout);
  if (interrupts.requested()) return absl::CancelledError("interrupted");
  if (!connected.ok()) return connected;
  return session;
}

WorkerSession::WorkerSession(std::unique_ptr<server::WorkerGroup> group, Interrupts& interrupts,
                             bool ends_at_interruption)
    : interrupts_(interrupts), group_(std::move(group)) {
  if (ends_at_interruption) reaction_.emplace(interrupts, [workers = group_.get()] { workers->Kill(); });
}

absl::Status WorkerSession::Explain(const absl::Status& status, const std::string& activity) const {
  if (interrupts_.requested()) return absl::CancelledError("interrupted");
  if (status.code() != absl::StatusCode::kUnavailable && status.code() != absl::StatusCode::kDataLoss) {
    return Named(status, server::FieldNames::kCommandLine);
  }
  return absl::Status(status.code(), absl::StrCat("while ", activity, ": ", std::string(status.message())));
}

absl::StatusOr<control::ModelDescription> WorkerSession::DescribeAlone(const Options& options, Interrupts& interrupts,
                                                                       const std::string& model,
                                                                       const control::ComponentFiles& files) {
  ASSIGN_OR_RETURN(const std::unique_ptr<WorkerSession> session, Start(options, interrupts));
  absl::StatusOr<control::ModelDescription> description = session->Describe(model, files);
  if (!description.ok()) return description;
  RETURN_IF_ERROR(session->Close());
  return description;
}

absl::StatusOr<control::DeviceIdentity> WorkerSession::IdentifyAlone(const Options& options, Interrupts& interrupts,
                                                                     const control::LoadParameters& load, int ranks) {
  if (!server::NeedsIdentity(load)) return control::DeviceIdentity();
  ASSIGN_OR_RETURN(const std::unique_ptr<WorkerSession> session, Start(options, interrupts));
  absl::StatusOr<control::DeviceIdentity> identity = session->group_->Identify(load.device, ranks);
  if (!identity.ok()) return session->Explain(identity.status(), "the devices were being identified");
  RETURN_IF_ERROR(session->Close());
  return identity;
}

absl::StatusOr<control::ModelDescription> WorkerSession::Describe(const std::string& model,
                                                                  const control::ComponentFiles& files) {
  absl::StatusOr<control::ModelDescription> description = group_->Describe(model, files);
  if (!description.ok()) return Explain(description.status(), "the model was being read");
  return description;
}

absl::StatusOr<control::ModelDescription> WorkerSession::Describe(const std::string& model) {
  return Describe(model, control::ComponentFiles());
}

absl::StatusOr<control::ModelDescription> WorkerSession::DescribeAlone(const Options& options, Interrupts& interrupts,
                                                                       const std::string& model) {
  return DescribeAlone(options, interrupts, model, control::ComponentFiles());
}

absl::StatusOr<control::Loaded> WorkerSession::Load(const control::LoadParameters& parameters) {
  absl::StatusOr<control::Loaded> loaded = group_->Load(parameters);
  if (!loaded.ok()) return Explain(loaded.status(), "the model was being loaded");
  return loaded;
}

absl::StatusOr<std::string> WorkerSession::Digest() {
  absl::StatusOr<std::string> digest = group_->Digest();
  if (!digest.ok()) return Explain(digest.status(), "the digest of the model was being computed");
  return digest;
}

absl::StatusOr<WorkerSession::Picture> WorkerSession::MakeImage(const control::JobParameters& parameters,
                                                                const Listener& listener) {
  ASSIGN_OR_RETURN(std::vector<Picture> pictures, MakeImages({&parameters, 1}, listener));
  return std::move(pictures.front());
}

absl::StatusOr<std::vector<WorkerSession::Picture>> WorkerSession::MakeImages(
    absl::Span<const control::JobParameters> batch, const Listener& listener) {
  Batch jobs(last_job_ + 1, batch, listener);
  last_job_ += batch.size();
  server::GroupTrace no_trace(nullptr, "", group_->ranks());
  server::StepLoop loop(*group_, jobs, no_trace, {});
  absl::Status status;
  while (!jobs.is_over() && status.ok()) status = loop.Turn();
  if (status.ok() && jobs.error().ok()) status = loop.FinishSteps();
  if (!status.ok()) jobs.OnFailed(0, 0, status);
  if (interrupts_.requested()) return absl::CancelledError("interrupted");
  if (!jobs.error().ok()) {
    absl::Status error = Explain(jobs.error(), jobs.activity());
    if (absl::IsUnavailable(error)) return error;
    // The original error is more useful than one from EndJob.
    for (const server::TaskId job : jobs.left()) group_->EndJob(job).IgnoreError();
    return error;
  }
  return jobs.TakePictures();
}

absl::Status WorkerSession::Close() {
  if (absl::Status status = group_->Shutdown(); !status.ok()) return Explain(status, "the worker was being ended");
  return absl::OkStatus();
}

}  // namespace tessera::client
