#include "client/cli/session/worker_session.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

constexpr absl::Duration kStartPatience = absl::Seconds(60);
}  // namespace

absl::StatusOr<std::unique_ptr<WorkerSession>> WorkerSession::Start(const Options& options, Interrupts& interrupts) {
  absl::StatusOr<std::unique_ptr<WorkerGroup>> group = WorkerGroup::Start({.layout = options.layout,
                                                                           .show_output = options.verbose,
                                                                           .patience = options.command_timeout,
                                                                           .progress = options.progress});
  if (!group.ok()) return group.status();
  std::unique_ptr<WorkerSession> session(new WorkerSession(*std::move(group), interrupts));
  absl::Status connected = session->group_->Connect(kStartPatience);
  if (interrupts.requested()) return absl::CancelledError("interrupted");
  if (!connected.ok()) return connected;
  return session;
}

WorkerSession::WorkerSession(std::unique_ptr<WorkerGroup> group, Interrupts& interrupts)
    : interrupts_(interrupts),
      group_(std::move(group)),
      reaction_(interrupts, [workers = group_.get()] { workers->Kill(); }) {}

absl::Status WorkerSession::Explain(const absl::Status& status, const std::string& activity) const {
  if (interrupts_.requested()) return absl::CancelledError("interrupted");
  if (status.code() != absl::StatusCode::kUnavailable && status.code() != absl::StatusCode::kDataLoss) return status;
  return absl::Status(status.code(), absl::StrCat("while ", activity, ": ", std::string(status.message())));
}

absl::StatusOr<ModelDescription> WorkerSession::DescribeAlone(const Options& options, Interrupts& interrupts,
                                                              const std::string& model) {
  const absl::StatusOr<std::unique_ptr<WorkerSession>> session = Start(options, interrupts);
  if (!session.ok()) return session.status();
  absl::StatusOr<ModelDescription> description = (*session)->Describe(model);
  if (!description.ok()) return description;
  if (absl::Status closed = (*session)->Close(); !closed.ok()) return closed;
  return description;
}

absl::StatusOr<ModelDescription> WorkerSession::Describe(const std::string& model) {
  absl::StatusOr<ModelDescription> description = group_->Describe(model);
  if (!description.ok()) return Explain(description.status(), "the model was being read");
  return description;
}

absl::StatusOr<Loaded> WorkerSession::Load(const LoadParameters& parameters) {
  absl::StatusOr<Loaded> loaded = group_->Load(parameters);
  if (!loaded.ok()) return Explain(loaded.status(), "the model was being loaded");
  return loaded;
}

absl::StatusOr<WorkerSession::Picture> WorkerSession::MakeImage(const JobParameters& parameters,
                                                                const Listener& listener) {
  absl::StatusOr<std::vector<Picture>> pictures = MakeImages({&parameters, 1}, listener);
  if (!pictures.ok()) return pictures.status();
  return std::move(pictures->front());
}

absl::StatusOr<std::vector<WorkerSession::Picture>> WorkerSession::MakeImages(absl::Span<const JobParameters> batch,
                                                                              const Listener& listener) {
  std::vector<uint64_t> jobs;
  for (size_t i = 0; i < batch.size(); ++i) jobs.push_back(++last_job_);
  absl::StatusOr<std::vector<Picture>> pictures = RunJobs(jobs, batch, listener);
  if (interrupts_.requested()) return absl::CancelledError("interrupted");
  if (pictures.status().code() != absl::StatusCode::kUnavailable) {
    // The pictures or their own error matter more than that of the end.
    for (const uint64_t job : jobs) {
      absl::Status ended = group_->EndJob(job);
      if (pictures.ok() && !ended.ok()) return Explain(ended, "the image was being given up");
    }
  }
  return pictures;
}

absl::StatusOr<std::vector<WorkerSession::Picture>> WorkerSession::RunJobs(absl::Span<const uint64_t> jobs,
                                                                           absl::Span<const JobParameters> batch,
                                                                           const Listener& listener) {
  std::vector<Picture> pictures(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    absl::StatusOr<JobStarted> started = group_->StartJob(jobs[i], batch[i]);
    if (!started.ok()) return Explain(started.status(), "the prompt was being encoded");
    pictures[i].started = *started;
    if (listener.started) listener.started(*started);
  }

  const int32_t steps = batch[0].steps;
  std::deque<uint64_t> in_flight;  // sequence numbers
  int32_t sent = 0;
  const auto preview_due_after = [&](int32_t step) {
    return listener.preview_every > 0 && step > 0 && step < steps && step % listener.preview_every == 0;
  };
  for (int32_t done = 0; done < steps;) {
    const std::string activity = absl::StrCat("step ", done + 1, " of ", steps, " was running");
    while (sent < steps && in_flight.size() < WorkerGroup::kMaxStepsInFlight) {
      // A preview shows the job as it is when its turn comes in the log, so no later step may stand before it.
      if (preview_due_after(sent) && !in_flight.empty()) break;
      absl::StatusOr<uint64_t> sequence = group_->SendStep(jobs);
      if (!sequence.ok()) return Explain(sequence.status(), activity);
      in_flight.push_back(*sequence);
      ++sent;
    }
    absl::StatusOr<Stepped> stepped = group_->WaitForStep(in_flight.front());
    if (!stepped.ok()) return Explain(stepped.status(), activity);
    in_flight.pop_front();
    ++done;
    if (stepped->completed != done) {
      return absl::UnavailableError(absl::StrCat("the worker reports step ", stepped->completed, " after step ", done));
    }
    if (listener.stepped) listener.stepped(*stepped);
    if (preview_due_after(done) && listener.preview) {
      absl::StatusOr<DecodedPicture> preview = group_->Decode(jobs[0], pictures[0].started);
      if (!preview.ok()) return Explain(preview.status(), "a preview was being decoded");
      listener.preview(done, preview->image);
    }
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    absl::StatusOr<DecodedPicture> decoded = group_->Decode(jobs[i], pictures[i].started);
    if (!decoded.ok()) return Explain(decoded.status(), "the image was being decoded");
    pictures[i].image = std::move(decoded->image);
    pictures[i].decode_seconds = decoded->seconds;
  }
  return pictures;
}

absl::Status WorkerSession::Close() {
  if (absl::Status status = group_->Shutdown(); !status.ok()) return Explain(status, "the worker was being ended");
  return absl::OkStatus();
}

}  // namespace tessera
