// ReadQueue reads the queued tasks: one thread reads and parses rows, another visits them.
#pragma once

#include <functional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/jobs/sqlite.h"
#include "server/jobs/sqlite_rows.h"
#include "server/jobs/stored_job.h"

namespace tessera::server {

// A queued task. If `row.request` is an error, its job cannot be read.
struct StoredTask {
  QueueEntry row;
  StoredJob job;
};

// `read` calls its argument with the database, on a thread of this function. `visit` is called on the caller's thread
// in the order of the tasks.
absl::Status ReadQueue(const std::function<absl::Status(const std::function<absl::Status(SqliteDatabase&)>&)>& read,
                       absl::FunctionRef<void(const StoredTask&)> visit);

}  // namespace tessera::server
