// What every job store decides alike, whatever keeps its rows.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/job_record.h"
#include "server/jobs/job_rows.h"
#include "server/jobs/queue_reader.h"
#include "server/jobs/record_ids.h"

namespace tessera::server {

// The number below which a page of a list begins; INVALID_ARGUMENT for a limit that is none and for an `after` that no
// page gave.
absl::StatusOr<uint64_t> BeginOfPage(const RecordIds& ids, int32_t limit, const std::string& after);

QueuedTask QueuedTaskOf(const StoredTask& stored, const RecordIds& ids);

// FAILED_PRECONDITION otherwise.
absl::Status CheckQueued(TaskState state);

absl::Status NoSuchImage();

// INVALID_ARGUMENT for a file that is larger.
absl::Status CheckImageBytes(const std::string& file, uint64_t most);

// Complete moves to failed, done and queued. The image is that of `file`, which is kept under ResultFileName;
// INVALID_ARGUMENT for an origin that could not be read back. A task whose worker died is quarantined where it is to
// blame; `reason` is shown to the user.
TaskMove WithError(TaskMove move, const absl::Status& error);
absl::StatusOr<TaskMove> WithImage(TaskMove move, const TaskAttempt& attempt, const std::string& file,
                                   const ImageOrigin& origin);
TaskMove WithDeath(TaskMove move, const Blame& before, bool was_alone, const std::string& reason);

}  // namespace tessera::server
