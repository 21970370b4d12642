// The tables of a job store in PostgreSQL, in a schema named tessera, and their versions.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/postgres.h"
#include "server/jobs/record_ids.h"

namespace tessera::server {

// Each job has a separate range of numbers, so that its tasks are numbered without gaps even with concurrent
// submissions. The range is larger than the maximum number of images of a job, and odd, so that file names spread over
// all folders.
inline constexpr int kNumbersOfAJob = 1009;

// Migrates the database from its version (none: 0) to `target` in one transaction; several processes may do so at once.
// FAILED_PRECONDITION for a version above `target`.
absl::Status MigratePostgresSchema(PostgresConnection& database, int target);

// Returns the ids' secret, which belongs to this database and to every one restored from it.
absl::StatusOr<RecordIds> ReadRecordIds(PostgresConnection& database);

// NOT_FOUND unless the database has the secret of those ids; otherwise it is a different database.
absl::Status CheckSecret(PostgresConnection& database, const RecordIds& ids);

}  // namespace tessera::server
