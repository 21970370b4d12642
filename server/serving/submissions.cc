// How a request becomes a job that is kept, or is refused.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/api/generation_request.h"
#include "server/api/service_error.h"
#include "server/scheduling/cost_model.h"
#include "server/serving/durable_image_service.h"
#include "server/serving/storage_error.h"

namespace tessera {
namespace {

constexpr absl::Duration kComeAgain = absl::Seconds(1);

}  // namespace

absl::Status DurableImageService::Draining() {
  return WithRetryAfter(
      WithErrorCode(absl::UnavailableError("the server is ending and accepts no more jobs"), "draining"), kComeAgain);
}

absl::Status DurableImageService::NotServed() { return absl::FailedPreconditionError("the model is no longer served"); }

absl::StatusOr<Submitted> DurableImageService::Submit(const Caller& caller, const JobRequest& request,
                                                      const std::optional<IdempotencyKey>& idempotency) {
  absl::StatusOr<Submitted> submitted = Accept(caller, request, idempotency);
  if (!submitted.ok()) CountRejection(submitted.status());
  return submitted;
}

absl::StatusOr<Submitted> DurableImageService::Accept(const Caller& caller, const JobRequest& request,
                                                      const std::optional<IdempotencyKey>& idempotency) {
  const absl::Status storage = CheckStorage();
  const absl::StatusOr<uint64_t> ticket = storage.ok() ? Admit(caller, request) : storage;
  if (ticket.ok()) return Keep(caller, request, idempotency, *ticket);
  if (idempotency.has_value()) {
    absl::StatusOr<std::optional<Submitted>> known = FindSubmission(caller, *idempotency);
    if (!known.ok()) return known.status();
    if (known->has_value()) return **std::move(known);
  }
  return ticket.status();
}

void DurableImageService::CountRejection(const absl::Status& refused) {
  if (refused.code() != absl::StatusCode::kResourceExhausted && refused.code() != absl::StatusCode::kUnavailable) {
    return;
  }
  metrics_.CountReject(ErrorCode(refused));
}

absl::StatusOr<uint64_t> DurableImageService::Admit(const Caller& caller, const JobRequest& request) {
  const std::lock_guard lock(mutex_);
  if (draining_) return Draining();
  const std::shared_ptr<const ServedModel> model = FindServed(request.model);
  if (model == nullptr) return absl::NotFoundError(absl::StrCat("there is no model ", request.model));
  if (!model->unreadable.ok()) return model->unreadable;
  if (absl::Status in_time = CheckJobTime(request, *model); !in_time.ok()) return in_time;
  const Admission admission = scheduler_.Admit(
      caller.tenant, ShapeOf(model->id, model->description, request.parameters), request.parameters.steps,
      request.count,
      {.max_waiting = caller.limits.queued_jobs, .max_device_seconds = caller.limits.queued_device_seconds});
  if (admission.status.ok()) return admission.ticket;
  if (admission.status.code() == absl::StatusCode::kInvalidArgument) return admission.status;  // too large for ever
  if (admission.status.code() != absl::StatusCode::kResourceExhausted) {
    return WithErrorCode(absl::UnavailableError(admission.status.message()), "no_group");
  }
  return WithRetryAfter(WithErrorCode(admission.status, admission.key_is_full ? "key_queue_full" : "queue_full"),
                        std::clamp(admission.expected_wait, absl::Seconds(1), absl::Hours(1)));
}

absl::Status DurableImageService::CheckJobTime(const JobRequest& request, const ServedModel& model) const {
  if (limits_.max_job_time == absl::ZeroDuration()) return absl::OkStatus();
  const JobParameters& job = request.parameters;
  const absl::Duration least =
      scheduler_.LeastJobTime(ShapeOf(model.id, model.description, job), job.steps, request.count);
  if (least <= limits_.max_job_time) return absl::OkStatus();
  const bool too_wide = !SizeWarnings(job, model.description).empty();
  const std::string rest = absl::StrFormat(
      ": %d of %dx%d with %d steps would take at least %.0f s; valid are jobs of at most %.0f s "
      "(limits.max_job_seconds): "
      "ask for a smaller image, fewer steps or fewer images",
      request.count, job.width, job.height, job.steps, std::ceil(absl::ToDoubleSeconds(least)),
      absl::ToDoubleSeconds(limits_.max_job_time));
  return FieldError(too_wide ? "size" : request.count > 1 ? "n" : "num_inference_steps", rest);
}

void DurableImageService::SetLimits(const ServiceLimits& limits) {
  const std::lock_guard lock(mutex_);
  limits_ = limits;
  scheduler_.SetBounds(limits.max_queued_jobs, limits.max_expected_wait);
}

absl::StatusOr<Submitted> DurableImageService::Keep(const Caller& caller, const JobRequest& request,
                                                    const std::optional<IdempotencyKey>& idempotency, uint64_t ticket) {
  const absl::StatusOr<SubmittedJob> submitted = store_->Submit(
      {.tenant = caller.tenant, .request = request, .idempotency = idempotency, .trace_parent = caller.trace_parent});
  const std::lock_guard lock(mutex_);
  if (!submitted.ok() || submitted->existed) scheduler_.Release(ticket);
  if (!submitted.ok()) return StorageErrorForCaller(submitted.status(), store_->trouble().state);
  const JobRecord& record = submitted->job;
  if (!submitted->existed) {
    for (const TaskRecord& task : record.tasks) {
      Enqueue({.id = task.id,
               .index = task.index,
               .job = record.id,
               .tenant = record.tenant,
               .blame = task.blame,
               .created = record.created,
               .deadline = record.deadline,
               .trace_parent = record.trace_parent,
               .request = &record.request},
              ticket);
    }
    Changed();
  }
  return Submitted{.job = JobOf(record), .existed = submitted->existed};
}

absl::StatusOr<std::optional<Submitted>> DurableImageService::FindSubmission(const Caller& caller,
                                                                             const IdempotencyKey& idempotency) {
  const absl::StatusOr<std::optional<JobRecord>> known = store_->FindSubmission(caller.tenant, idempotency);
  if (!known.ok()) return StorageErrorForCaller(known.status());
  if (!known->has_value()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return Submitted{.job = JobOf(**known), .existed = true};
}

}  // namespace tessera
