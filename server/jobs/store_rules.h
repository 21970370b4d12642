// Rules that all job stores share, whatever holds their rows.
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

// Returns the number below which a page of a list begins. INVALID_ARGUMENT for a limit out of range, NOT_FOUND for an
// `after` that no page returned.
absl::StatusOr<uint64_t> BeginOfPage(const RecordIds& ids, int32_t limit, const std::string& after);

QueuedTask QueuedTaskOf(const StoredTask& stored, const RecordIds& ids);

// QueueTimes corrects the submission times of a queue's tasks, some of which may come from a wrong clock. The scheduler
// relies on them, so they must be in the order of the queue and not in the future.
class QueueTimes {
 public:
  explicit QueueTimes(absl::Time now) : now_(now) {}
  // Corrects the next task of the queue.
  void Correct(QueuedTask& task);

 private:
  const absl::Time now_;
  absl::Time last_ = absl::InfinitePast();
};

// Returns a warning if the newest time in the records is in the future of `now`, else an empty text.
std::string FutureText(absl::Time newest, absl::Time now);

// FAILED_PRECONDITION if the state is not queued.
absl::Status CheckQueued(TaskState state);

absl::Status NoSuchImage();

// INVALID_ARGUMENT for a larger file.
absl::Status CheckImageBytes(const std::string& file, uint64_t most);

// Complete moves to failed, done and queued. The image is `file`, which is stored under ResultFileName;
// INVALID_ARGUMENT for an origin that could not be read back. A task whose worker died is quarantined if it is to
// blame; `reason` is shown to the user.
TaskMove WithError(TaskMove move, const absl::Status& error);
absl::StatusOr<TaskMove> WithImage(TaskMove move, const TaskAttempt& attempt, const std::string& file,
                                   const ImageOrigin& origin);
TaskMove WithDeath(TaskMove move, const Blame& before, bool was_alone, const std::string& reason);

}  // namespace tessera::server
