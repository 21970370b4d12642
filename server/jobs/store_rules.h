// What every job store decides alike, whatever keeps its rows.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/jobs/job_record.h"
#include "server/jobs/job_rows.h"
#include "server/jobs/queue_reader.h"
#include "server/jobs/record_ids.h"

namespace tessera::server {

// The number below which a page of a list begins; INVALID_ARGUMENT for a limit that is none and for an `after` that no
// page gave.
absl::StatusOr<uint64_t> BeginOfPage(const RecordIds& ids, int32_t limit, const std::string& after);

QueuedTask QueuedTaskOf(const StoredTask& stored, const RecordIds& ids);

// The times at which the tasks of a queue were submitted, of which some may be of a wrong clock. The scheduler goes by
// them, so they have to be in the order of the queue and may not lie in the future.
class QueueTimes {
 public:
  explicit QueueTimes(absl::Time now) : now_(now) {}
  // Of the next task of the queue.
  void Correct(QueuedTask& task);

 private:
  const absl::Time now_;
  absl::Time last_ = absl::InfinitePast();
};

// What there is to say of the newest time in the records when the calendar says `now`; empty where it has been.
std::string FutureText(absl::Time newest, absl::Time now);

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
