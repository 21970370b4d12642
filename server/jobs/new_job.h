// NewJob is a job to be stored, and ClaimedTask is what a worker group gets of it.
#pragma once

#include <optional>
#include <string>

#include "control/parameters/job_parameters.h"
#include "server/api/caller.h"
#include "server/api/job_request.h"
#include "server/jobs/job_record.h"

namespace tessera::server {

struct NewJob {
  std::string tenant;  // 1 … kMaxTenantBytes bytes
  JobRequest request;  // validated; count 1 … kMaxImageCount
  std::optional<IdempotencyKey> idempotency;
  std::string trace_parent;
};

struct ClaimedTask {
  TaskAttempt claim;
  control::JobParameters parameters;  // contains this task's seed
};

}  // namespace tessera::server
