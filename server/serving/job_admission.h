// How a request becomes a job that is kept, or is refused. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/serving/job_lifecycle.h"
#include "server/serving/job_outcomes.h"
#include "server/serving/service_options.h"
#include "server/serving/serving_context.h"

namespace tessera::server {

class JobAdmission final {
 public:
  JobAdmission(const ServingContext& context, JobLifecycle& jobs, const JobOutcomes& outcomes,
               const ServiceLimits& limits)
      : context_(context), jobs_(jobs), outcomes_(outcomes), limits_(limits) {}

  // As ImageService has them.
  absl::StatusOr<Submitted> Submit(const Caller& caller, const JobRequest& request,
                                   const std::optional<IdempotencyKey>& idempotency);
  absl::StatusOr<std::optional<Submitted>> FindSubmission(const Caller& caller, const IdempotencyKey& idempotency);
  void CountRejection(const absl::Status& refused);

  // For jobs from now on.
  void SetLimits(const ServiceLimits& limits);

 private:
  absl::StatusOr<Submitted> Accept(const Caller& caller, const JobRequest& request,
                                   const std::optional<IdempotencyKey>& idempotency);
  // OK, or what callers are told; tries the disk where it was in trouble.
  absl::Status CheckStorage();
  // Whether a new job may be kept: the scheduler's ticket for it.
  absl::StatusOr<uint64_t> Admit(const Caller& caller, const JobRequest& request);
  // INVALID_ARGUMENT where it would take a group longer than a job may.
  absl::Status CheckJobTime(const ServiceMonitor::Lock& lock, const JobRequest& request,
                            const ServedModel& model) const;
  absl::StatusOr<Submitted> Keep(const Caller& caller, const JobRequest& request,
                                 const std::optional<IdempotencyKey>& idempotency, uint64_t ticket);

  const ServingContext context_;
  JobLifecycle& jobs_;
  const JobOutcomes& outcomes_;
  ServiceLimits limits_;  // guarded by the monitor
};

}  // namespace tessera::server
