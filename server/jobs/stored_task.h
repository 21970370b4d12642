// StoredTask is a queued task as it is read from a store.
#pragma once

#include "server/jobs/sqlite_rows.h"
#include "server/jobs/stored_job.h"

namespace tessera::server {

// A queued task. If `row.request` is an error, its job cannot be read.
struct StoredTask {
  QueueEntry row;
  StoredJob job;
};

}  // namespace tessera::server
