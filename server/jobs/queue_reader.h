// ReadQueue reads the queued tasks: one thread reads and parses rows, another visits them.
#pragma once

#include <functional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/jobs/sqlite.h"
#include "server/jobs/sqlite_rows.h"

namespace tessera::server {

struct StoredTask;  // server/jobs/stored_task.h

// `read` calls its argument with the database, on a thread of this function. `visit` is called on the caller's thread
// in the order of the tasks.
absl::Status ReadQueue(const std::function<absl::Status(const std::function<absl::Status(SqliteDatabase&)>&)>& read,
                       absl::FunctionRef<void(const StoredTask&)> visit);

}  // namespace tessera::server
