// JobAdmission turns a request into a stored job or refuses it. Thread-safe.
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

struct Caller;
struct Submitted;

class JobAdmission final {
 public:
  JobAdmission(const ServingContext& context, JobLifecycle& jobs, const JobOutcomes& outcomes,
               const ServiceLimits& limits)
      : context_(context), jobs_(jobs), outcomes_(outcomes), limits_(limits) {}

  // See ImageService.
  absl::StatusOr<Submitted> Submit(const Caller& caller, const JobRequest& request,
                                   const std::optional<IdempotencyKey>& idempotency);
  absl::StatusOr<std::optional<Submitted>> FindSubmission(const Caller& caller, const IdempotencyKey& idempotency);
  void CountRejection(const absl::Status& refused);

  // Applies to jobs that are submitted from now on.
  void SetLimits(const ServiceLimits& limits);

 private:
  absl::StatusOr<Submitted> Accept(const Caller& caller, const JobRequest& request,
                                   const std::optional<IdempotencyKey>& idempotency);
  // Returns OK or the error for callers; probes the disk if it was in trouble.
  absl::Status CheckStorage();
  // Returns the scheduler's ticket for a new job, or why it is refused.
  absl::StatusOr<uint64_t> Admit(const Caller& caller, const JobRequest& request);
  // INVALID_ARGUMENT if a group would need longer for the job than a job may take.
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
