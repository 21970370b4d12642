// The tables of the job store and their versions.
#pragma once

#include "absl/status/status.h"
#include "server/jobs/sqlite.h"

namespace tessera::server {

// Migrates the database from its version (PRAGMA user_version; 0: empty) to `target` in one transaction.
// FAILED_PRECONDITION for a version above `target`, DATA_LOSS for an unversioned database that is not empty.
absl::Status MigrateSchema(SqliteDatabase& database, int target);

}  // namespace tessera::server
