#include "server/serving/job_admission.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/macros/status_macros.h"
#include "control/model/model_description.h"
#include "server/api/caller.h"
#include "server/api/generation_request.h"
#include "server/api/job.h"
#include "server/api/job_request.h"
#include "server/api/service_error.h"
#include "server/jobs/new_job.h"
#include "server/scheduling/shape_class.h"
#include "server/serving/storage_error.h"

namespace tessera::server {
absl::StatusOr<Submitted> JobAdmission::Submit(const Caller& caller, const JobRequest& request,
                                               const std::optional<IdempotencyKey>& idempotency) {
  absl::StatusOr<Submitted> submitted = Accept(caller, request, idempotency);
  if (!submitted.ok()) CountRejection(submitted.status());
  return submitted;
}

absl::StatusOr<Submitted> JobAdmission::Accept(const Caller& caller, const JobRequest& request,
                                               const std::optional<IdempotencyKey>& idempotency) {
  const absl::Status storage = CheckStorage();
  const absl::StatusOr<uint64_t> ticket = storage.ok() ? Admit(caller, request) : storage;
  if (ticket.ok()) return Keep(caller, request, idempotency, *ticket);
  if (idempotency.has_value()) {
    ASSIGN_OR_RETURN(std::optional<Submitted> known, FindSubmission(caller, *idempotency));
    if (known.has_value()) return *std::move(known);
  }
  return ticket.status();
}

void JobAdmission::CountRejection(const absl::Status& refused) {
  if (refused.code() != absl::StatusCode::kResourceExhausted && refused.code() != absl::StatusCode::kUnavailable) {
    return;
  }
  context_.metrics.CountReject(ErrorCode(refused));
}

// Tries a write to find out whether the trouble is over, because maintenance may not look for another moment.
absl::Status JobAdmission::CheckStorage() {
  if (context_.monitor.draining() || context_.store.can_write()) return absl::OkStatus();
  if (outcomes_.writes_under_way() == 0 && context_.store.TryWrite().ok()) return absl::OkStatus();
  return StorageErrorForCaller(context_.store.trouble().state);
}

absl::StatusOr<uint64_t> JobAdmission::Admit(const Caller& caller, const JobRequest& request) {
  const ServiceMonitor::Lock lock = context_.monitor.Acquire();
  if (context_.monitor.draining()) return DrainingError();
  const ServedModels::Model model = context_.models.Find(request.model);
  if (model == nullptr) return absl::NotFoundError(absl::StrCat("there is no model ", request.model));
  if (!model->unreadable.ok()) return model->unreadable;
  RETURN_IF_ERROR(CheckJobTime(lock, request, *model));
  const Admission admission = context_.monitor.scheduler(lock).admission().Admit(
      caller.tenant, ShapeOf(model->id, model->description->cost, request.parameters),
      control::ExpectedSteps(request.parameters), request.count,
      {.max_waiting = caller.limits.queued_jobs, .max_device_seconds = caller.limits.queued_device_seconds});
  if (admission.status.ok()) return admission.ticket;
  if (admission.status.code() == absl::StatusCode::kInvalidArgument) return admission.status;  // permanently too large
  if (admission.status.code() != absl::StatusCode::kResourceExhausted) {
    return WithErrorCode(absl::UnavailableError(admission.status.message()), "no_group");
  }
  return WithRetryAfter(WithErrorCode(admission.status, admission.key_is_full ? "key_queue_full" : "queue_full"),
                        std::clamp(admission.expected_wait, absl::Seconds(1), absl::Hours(1)));
}

absl::Status JobAdmission::CheckJobTime(const ServiceMonitor::Lock& lock, const JobRequest& request,
                                        const ServedModel& model) const {
  if (limits_.max_job_time == absl::ZeroDuration()) return absl::OkStatus();
  const control::JobParameters& job = request.parameters;
  const absl::Duration least = context_.monitor.scheduler(lock).capacity().LeastJobTime(
      ShapeOf(model.id, model.description->cost, job), control::ExpectedSteps(job), request.count);
  if (least <= limits_.max_job_time) return absl::OkStatus();
  const bool too_wide = !SizeWarnings(job, *model.description).empty();
  const std::string rest = absl::StrFormat(
      ": %d of %dx%d with %d steps would take at least %.0f s; valid are jobs of at most %.0f s "
      "(limits.max_job_seconds): "
      "ask for a smaller image, fewer steps or fewer images",
      request.count, job.width, job.height, control::ExpectedSteps(job), std::ceil(absl::ToDoubleSeconds(least)),
      absl::ToDoubleSeconds(limits_.max_job_time));
  return FieldError(too_wide ? "size" : request.count > 1 ? "n" : "num_inference_steps", rest);
}

void JobAdmission::SetLimits(const ServiceLimits& limits) {
  const ServiceMonitor::Lock lock = context_.monitor.Acquire();
  limits_ = limits;
  context_.monitor.scheduler(lock).admission().SetBounds(limits.max_queued_jobs, limits.max_expected_wait);
}

absl::StatusOr<Submitted> JobAdmission::Keep(const Caller& caller, const JobRequest& request,
                                             const std::optional<IdempotencyKey>& idempotency, uint64_t ticket) {
  const absl::StatusOr<SubmittedJob> submitted = context_.store.Submit(
      {.tenant = caller.tenant, .request = request, .idempotency = idempotency, .trace_parent = caller.trace_parent});
  const ServiceMonitor::Lock lock = context_.monitor.Acquire();
  if (!submitted.ok() || submitted->existed) context_.monitor.scheduler(lock).admission().Release(ticket);
  if (!submitted.ok()) return StorageErrorForCaller(submitted.status(), context_.store.trouble().state);
  const JobRecord& record = submitted->job;
  if (!submitted->existed) {
    for (const TaskRecord& task : record.tasks) jobs_.Enqueue(lock, QueuedTaskOf(record, task), ticket);
    context_.monitor.NotifyWork(lock);
  }
  return Submitted{.job = JobOf(context_, lock, record), .existed = submitted->existed};
}

absl::StatusOr<std::optional<Submitted>> JobAdmission::FindSubmission(const Caller& caller,
                                                                      const IdempotencyKey& idempotency) {
  const absl::StatusOr<std::optional<JobRecord>> known = context_.store.FindSubmission(caller.tenant, idempotency);
  if (!known.ok()) return StorageErrorForCaller(known.status(), context_.store.trouble().state);
  if (!known->has_value()) return std::nullopt;
  const ServiceMonitor::Lock lock = context_.monitor.Acquire();
  return Submitted{.job = JobOf(context_, lock, **known), .existed = true};
}

}  // namespace tessera::server
