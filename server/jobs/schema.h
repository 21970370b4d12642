// The tables of the job store and their versions.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/sqlite.h"

namespace tessera::server {

// Returns the version of the database's tables (PRAGMA user_version); 0: it has none.
absl::StatusOr<int64_t> SchemaVersionOf(SqliteDatabase& database);

// Migrates the database from its version to `target` in one transaction.
// FAILED_PRECONDITION for a version above `target`, DATA_LOSS for an unversioned database that is not empty.
absl::Status MigrateSchema(SqliteDatabase& database, int target);

}  // namespace tessera::server
