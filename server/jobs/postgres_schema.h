// The tables of a job store in PostgreSQL, in a schema named tessera, and their versions.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/postgres.h"
#include "server/jobs/record_ids.h"

namespace tessera::server {

// Each job has a range of numbers to itself, so that those of its tasks follow without a gap whoever submits at the
// same time: one more than the most images of a job, and odd, so that names of files spread over all folders.
inline constexpr int kNumbersOfAJob = 1009;

// Brings the database from its version (none: 0) to `target`, in one transaction; several processes may do so at once.
// FAILED_PRECONDITION for a version above `target`.
absl::Status MigratePostgresSchema(PostgresConnection& database, int target);

// What the ids are made with: it is the database's own, and of every one that was restored from it.
absl::StatusOr<RecordIds> ReadRecordIds(PostgresConnection& database);

// NOT_FOUND unless the database has the secret of those ids: it is another one.
absl::Status CheckSecret(PostgresConnection& database, const RecordIds& ids);

}  // namespace tessera::server
