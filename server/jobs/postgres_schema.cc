#include "server/jobs/postgres_schema.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/text/random_bytes.h"
#include "server/api/request_limits.h"
#include "server/jobs/job_record.h"
#include "server/jobs/postgres_job_store.h"

namespace tessera::server {
namespace {

// Element i migrates version i to i + 1. Released steps are never edited. Times are microseconds since 1970 by the
// database's clock, unless they are running time (store_time.h).
constexpr const char* kPostgresSteps[] = {
    R"(CREATE TABLE store(version bigint NOT NULL, secret bytea NOT NULL);  -- one row
       CREATE SEQUENCE job_numbers AS bigint INCREMENT BY 1009;
       CREATE TABLE servers(                  -- processes that may have tasks
         id bigint PRIMARY KEY,
         name text NOT NULL,                  -- for operators
         expires timestamptz NOT NULL);       -- then what it runs is others' to make
       CREATE TABLE jobs(
         number bigint PRIMARY KEY,
         token text NOT NULL UNIQUE,
         tenant text NOT NULL,
         tasks integer NOT NULL,
         created bigint NOT NULL,
         deadline bigint,
         expires bigint,                      -- of an ended job
         state smallint NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 4),  -- StateOf its tasks
         request bytea NOT NULL,              -- tessera.internal.stored.Job
         checksum bytea NOT NULL);            -- SHA-256 of it
       CREATE INDEX jobs_by_tenant ON jobs(tenant, number);
       CREATE INDEX jobs_by_state ON jobs(tenant, state, number);
       CREATE INDEX jobs_by_expiry ON jobs(expires) WHERE expires IS NOT NULL;
       CREATE TABLE tasks(
         number bigint PRIMARY KEY,
         job bigint NOT NULL REFERENCES jobs(number) ON DELETE CASCADE,
         state smallint NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 5),
         attempt integer NOT NULL DEFAULT 0,
         deaths integer NOT NULL DEFAULT 0,
         isolated boolean NOT NULL DEFAULT false,
         owner bigint,                        -- the server that claimed it last
         started bigint,
         ended bigint,
         error_code integer,
         error bytea,
         error_field text,
         image bytea,                         -- tessera.internal.stored.Image
         bytes bigint);                       -- of its file
       CREATE INDEX tasks_by_job ON tasks(job, number);
       CREATE INDEX tasks_open ON tasks(number) WHERE state IN (0, 1);
       CREATE INDEX tasks_running ON tasks(owner) WHERE state = 1;
       CREATE INDEX tasks_done ON tasks(bytes) WHERE state = 2;
       CREATE TABLE idempotency(
         tenant text NOT NULL,
         key_hash bytea NOT NULL,
         digest bytea NOT NULL,
         job bigint NOT NULL REFERENCES jobs(number) ON DELETE CASCADE,
         PRIMARY KEY(tenant, key_hash));
       CREATE INDEX idempotency_by_job ON idempotency(job))",
    // `expires` had calendar time, possibly from a wrong clock. From now on each job is kept for the retention that it
    // had, in the order in which they ended. The column stays for servers of version 1 that still run: they remove only
    // what it says. Newer servers set `kept_until` for the jobs that these end.
    R"(ALTER TABLE store ADD COLUMN running bigint NOT NULL DEFAULT 0;  -- microseconds that servers have worked
       ALTER TABLE jobs ADD COLUMN kept_until bigint;                   -- of an ended job, in the time of store.running
       WITH ended AS (
         SELECT number, expires,
                expires - (SELECT MAX(t.ended) FROM tasks t WHERE t.job = jobs.number) AS retention
         FROM jobs WHERE expires IS NOT NULL)
       UPDATE jobs SET kept_until = e.retention + e.place, expires = NULL FROM (
         SELECT number, ROW_NUMBER() OVER (ORDER BY expires, number) AS place,
           CASE WHEN retention > 0 THEN retention
                ELSE GREATEST(86400000000, (SELECT MAX(retention) FROM ended)) END AS retention FROM ended) e
         WHERE e.number = jobs.number;
       CREATE INDEX jobs_kept ON jobs(kept_until) WHERE kept_until IS NOT NULL;
       CREATE INDEX jobs_not_kept ON jobs(number) WHERE kept_until IS NULL AND state >= 2)",
    R"(CREATE TABLE usage(                   -- totals of a day
         day bigint NOT NULL,                 -- since 1970, UTC
         tenant text NOT NULL,
         model text NOT NULL,
         shard bigint NOT NULL,               -- of the server, so that servers do not wait for each other
         images bigint NOT NULL,
         steps bigint NOT NULL,
         device_microseconds bigint NOT NULL,
         PRIMARY KEY(day, tenant, model, shard)))",
};
static_assert(kNumbersOfAJob > kMaxImageCount);

absl::Status Advance(PostgresConnection& database, int64_t version, int target) {
  for (int64_t step = version; step < target; ++step) RETURN_IF_ERROR(database.RunScript(kPostgresSteps[step]));
  if (version > 0) return database.Run("UPDATE store SET version = $1::bigint", {target});
  return database.Run("INSERT INTO store(version, secret) VALUES($1::bigint, $2::bytea)",
                      {target, SqlValue::Bytes(base::RandomBytes(kRecordIdSecretBytes))});
}

absl::Status Migrate(PostgresConnection& database, int target) {
  // One process at a time; only this program uses the number.
  RETURN_IF_ERROR(database.Run("SELECT pg_advisory_xact_lock(8386105380344915233)"));
  ASSIGN_OR_RETURN(const PostgresRows schema, database.Query("SELECT to_regnamespace('tessera') IS NOT NULL"));
  if (schema.Int(0, 0) == 0) RETURN_IF_ERROR(database.Run("CREATE SCHEMA tessera"));
  ASSIGN_OR_RETURN(const PostgresRows table, database.Query("SELECT to_regclass('tessera.store') IS NOT NULL"));
  int64_t version = 0;
  if (table.Int(0, 0) != 0) {
    ASSIGN_OR_RETURN(const PostgresRows row, database.Query("SELECT version FROM store"));
    if (row.size() != 1) return absl::DataLossError("the job store's database is damaged: its version is missing");
    version = row.Int(0, 0);
  }
  if (version > target) {
    return absl::FailedPreconditionError(absl::StrCat("the job store has schema version ", version,
                                                      "; this program knows versions up to ", target,
                                                      ": it was written by a newer version of this program"));
  }
  return version == target ? absl::OkStatus() : Advance(database, version, target);
}

}  // namespace

absl::Status MigratePostgresSchema(PostgresConnection& database, int target) {
  static_assert(sizeof(kPostgresSteps) / sizeof(kPostgresSteps[0]) == PostgresJobStore::kSchemaVersion);
  RETURN_IF_ERROR(database.Run("BEGIN"));
  absl::Status status = Migrate(database, target);
  if (status.ok()) return database.Commit();
  database.Run("ROLLBACK").IgnoreError();
  return status;
}

absl::StatusOr<RecordIds> ReadRecordIds(PostgresConnection& database) {
  ASSIGN_OR_RETURN(const PostgresRows row, database.Query("SELECT secret FROM store"));
  if (row.size() != 1 || row.Bytes(0, 0).size() != kRecordIdSecretBytes) {
    return absl::DataLossError("the job store's database is damaged: the secret of its ids is missing");
  }
  return RecordIds(std::string(row.Bytes(0, 0)), /*first_hidden=*/1);
}

absl::Status CheckSecret(PostgresConnection& database, const RecordIds& ids) {
  ASSIGN_OR_RETURN(const RecordIds found, ReadRecordIds(database));
  if (found.PageId(1) == ids.PageId(1)) return absl::OkStatus();
  return absl::NotFoundError("the database of the job store was replaced since the server started");
}

}  // namespace tessera::server
