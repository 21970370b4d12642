#include "server/jobs/schema.h"

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/text/random_bytes.h"
#include "server/jobs/record_ids.h"
#include "server/jobs/sqlite_job_store.h"
#include "server/jobs/sqlite_rows.h"

namespace tessera::server {
namespace {

// Element i migrates version i to i + 1. Released steps are never edited. Times are microseconds since 1970. A job's
// number is that of its first task; the others follow without a gap.
constexpr const char* kSqliteSteps[] = {
    R"(CREATE TABLE jobs(
         number INTEGER PRIMARY KEY,
         token TEXT NOT NULL,
         tenant TEXT NOT NULL,
         tasks INTEGER NOT NULL,
         created INTEGER NOT NULL,
         deadline INTEGER,
         expires INTEGER,             -- of an ended job
         request BLOB NOT NULL,       -- tessera.internal.stored.Job
         checksum BLOB NOT NULL);     -- SHA-256 of it
       CREATE INDEX jobs_by_tenant ON jobs(tenant, number);
       CREATE INDEX jobs_by_expiry ON jobs(expires) WHERE expires IS NOT NULL;
       CREATE TABLE tasks(
         number INTEGER PRIMARY KEY AUTOINCREMENT,
         job INTEGER NOT NULL,
         state INTEGER NOT NULL,
         attempt INTEGER NOT NULL DEFAULT 0,
         started INTEGER,
         ended INTEGER,
         error_code INTEGER,
         error TEXT,
         image BLOB);                 -- tessera.internal.stored.Image
       CREATE INDEX tasks_queued ON tasks(number) WHERE state = 0;
       CREATE INDEX tasks_running ON tasks(number) WHERE state = 1;
       CREATE TABLE idempotency(
         tenant TEXT NOT NULL,
         key_hash BLOB NOT NULL,
         digest BLOB NOT NULL,
         job INTEGER NOT NULL,
         PRIMARY KEY(tenant, key_hash)) WITHOUT ROWID;
       CREATE INDEX idempotency_by_job ON idempotency(job))",
    R"(ALTER TABLE tasks ADD COLUMN strikes INTEGER NOT NULL DEFAULT 0;
       ALTER TABLE tasks ADD COLUMN alone INTEGER NOT NULL DEFAULT 0)",
    R"(ALTER TABLE jobs ADD COLUMN state INTEGER NOT NULL DEFAULT 0;  -- StateOf its tasks
       UPDATE jobs SET state = (
         SELECT CASE
           WHEN MAX(t.state = 1) THEN 1
           WHEN MIN(t.state) = 0 THEN MAX(t.state) >= 2
           WHEN MAX(t.state IN (3, 5)) THEN 3
           WHEN MAX(t.state) = 4 THEN 4
           ELSE 2 END
         FROM tasks t WHERE t.number >= jobs.number AND t.number < jobs.number + jobs.tasks AND t.job = jobs.number)
         WHERE number IN (SELECT job FROM tasks WHERE state <> 0);
       CREATE INDEX jobs_by_state ON jobs(tenant, state, number);
       DROP INDEX jobs_by_tenant)",
    R"(CREATE TABLE record_ids(        -- one row; MakeRecordIds fills it
         secret BLOB NOT NULL,
         first_hidden INTEGER NOT NULL))",               // jobs below it keep their published ids
    R"(ALTER TABLE tasks ADD COLUMN error_field TEXT)",  // id of the parameter that the error is about
    R"(CREATE TABLE pictures(          -- of done tasks, until they are in files of their own
         task INTEGER PRIMARY KEY,
         attempt INTEGER NOT NULL,
         bytes BLOB NOT NULL))",
    // `expires` had calendar time, possibly from a wrong clock. From the first start on, each job is kept for the
    // retention that it had, in the order in which they ended.
    R"(CREATE TABLE running_time(microseconds INTEGER NOT NULL);  -- one row: how long servers have worked on the store
       INSERT INTO running_time VALUES(0);
       ALTER TABLE jobs RENAME COLUMN expires TO kept_until;      -- of an ended job, in running time
       WITH ended AS (
         SELECT number, kept_until AS expires, kept_until - (
           SELECT MAX(t.ended) FROM tasks t
           WHERE t.number >= jobs.number AND t.number < jobs.number + jobs.tasks AND t.job = jobs.number) AS retention
         FROM jobs WHERE kept_until IS NOT NULL)
       UPDATE jobs SET kept_until = e.retention + e.place FROM (
         SELECT number, ROW_NUMBER() OVER (ORDER BY expires, number) AS place,
           CASE WHEN retention > 0 THEN retention
                ELSE MAX(86400000000, (SELECT COALESCE(MAX(retention), 0) FROM ended)) END AS retention FROM ended) e
         WHERE e.number = jobs.number)",
    R"(CREATE TABLE usage(             -- totals of a day
         day INTEGER NOT NULL,          -- since 1970, UTC
         tenant TEXT NOT NULL,
         model TEXT NOT NULL,
         shard INTEGER NOT NULL,
         images INTEGER NOT NULL,
         steps INTEGER NOT NULL,
         device_microseconds INTEGER NOT NULL,
         PRIMARY KEY(day, tenant, model, shard)) WITHOUT ROWID)",
};
constexpr int kStepOfRecordIds = 3;

absl::StatusOr<int64_t> ReadNumber(SqliteDatabase& database, const char* sql) {
  ASSIGN_OR_RETURN(SqliteStatement statement, database.Prepare(sql));
  ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? statement.Int(0) : 0;
}

absl::Status MakeRecordIds(SqliteDatabase& database) {
  ASSIGN_OR_RETURN(const uint64_t next, NextNumber(database));
  ASSIGN_OR_RETURN(SqliteStatement insert,
                   database.Prepare("INSERT INTO record_ids(secret, first_hidden) VALUES(?,?)"));
  return insert.BindBlob(1, base::RandomBytes(kRecordIdSecretBytes)).Bind(2, static_cast<int64_t>(next)).Run();
}

absl::Status Advance(SqliteDatabase& database, int64_t version, int target) {
  for (int64_t step = version; step < target; ++step) {
    RETURN_IF_ERROR(database.Execute(kSqliteSteps[step]));
    if (step != kStepOfRecordIds) continue;
    RETURN_IF_ERROR(MakeRecordIds(database));
  }
  return database.Execute(absl::StrCat("PRAGMA user_version=", target).c_str());
}

}  // namespace

absl::StatusOr<int64_t> SchemaVersionOf(SqliteDatabase& database) {
  return ReadNumber(database, "PRAGMA user_version");
}

absl::Status MigrateSchema(SqliteDatabase& database, int target) {
  static_assert(sizeof(kSqliteSteps) / sizeof(kSqliteSteps[0]) == SqliteJobStore::kSchemaVersion);
  ASSIGN_OR_RETURN(const int64_t version, SchemaVersionOf(database));
  if (version == target) return absl::OkStatus();
  if (version > target) {
    return absl::FailedPreconditionError(absl::StrCat("the job store has schema version ", version,
                                                      "; this program knows versions up to ", target,
                                                      ": it was written by a newer version of this program"));
  }
  ASSIGN_OR_RETURN(const int64_t tables, ReadNumber(database, "SELECT COUNT(*) FROM sqlite_schema"));
  if (version < 0 || (version == 0 && tables > 0)) {
    return absl::DataLossError("the file is a database, but not one of a job store");
  }
  RETURN_IF_ERROR(database.Execute("BEGIN IMMEDIATE"));
  absl::Status status = Advance(database, version, target);
  if (status.ok()) status = database.Execute("COMMIT");
  if (!status.ok() && database.InTransaction()) database.Execute("ROLLBACK").IgnoreError();
  return status;
}

}  // namespace tessera::server
