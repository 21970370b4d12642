#include "server/jobs/schema.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fields/field_error.h"
#include "server/api/job.h"
#include "server/jobs/job_record.h"
#include "server/jobs/new_job.h"
#include "server/jobs/sqlite.h"
#include "server/jobs/sqlite_job_store.h"
#include "server/jobs/sqlite_rows.h"
#include "tests/jobs/fake_clock.h"
#include "tests/jobs/faulty_disk.h"
#include "tests/support/read_bytes.h"

namespace tessera::server {
namespace {

// The tables as version 1 made them, with a job in them. Never edited.
constexpr char kVersion1[] = R"(
  CREATE TABLE jobs(number INTEGER PRIMARY KEY, token TEXT NOT NULL, tenant TEXT NOT NULL, tasks INTEGER NOT NULL,
    created INTEGER NOT NULL, deadline INTEGER, expires INTEGER, request BLOB NOT NULL, checksum BLOB NOT NULL);
  CREATE INDEX jobs_by_tenant ON jobs(tenant, number);
  CREATE INDEX jobs_by_expiry ON jobs(expires) WHERE expires IS NOT NULL;
  CREATE TABLE tasks(number INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL, state INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0, started INTEGER, ended INTEGER, error_code INTEGER, error TEXT, image BLOB);
  CREATE INDEX tasks_queued ON tasks(number) WHERE state = 0;
  CREATE INDEX tasks_running ON tasks(number) WHERE state = 1;
  CREATE TABLE idempotency(tenant TEXT NOT NULL, key_hash BLOB NOT NULL, digest BLOB NOT NULL, job INTEGER NOT NULL,
    PRIMARY KEY(tenant, key_hash)) WITHOUT ROWID;
  CREATE INDEX idempotency_by_job ON idempotency(job);
  INSERT INTO jobs VALUES(1, '00112233445566778899aabbccddeeff', 'alice', 1, 1700000000000000, NULL, NULL,
    x'08011205616c6963651a05656d6f6a69222c0a09726564206170706c651840204028043100000000000012403907000000000000004a07746573736572612801',
    x'c8a9901023f28f640abf8c841e38570f86d795d7b1bf11ad4513a8b6de74e4cc');
  INSERT INTO tasks(number, job, state) VALUES(1, 1, 1);
  PRAGMA user_version = 1;
)";

TEST(JobStoreSchema, BringsAnOldVersionUpToDateWithItsJobs) {
  FaultyDisk disk;
  FakeClock clock;
  {
    absl::StatusOr<std::unique_ptr<SqliteDatabase>> database =
        SqliteDatabase::Open({.path = "jobs", .vfs = disk.vfs()});
    ASSERT_TRUE(database.ok()) << database.status();
    const absl::Status made = (*database)->Execute(kVersion1);
    ASSERT_TRUE(made.ok()) << made;
  }
  const absl::StatusOr<std::unique_ptr<JobStore>> store =
      SqliteJobStore::Open({.path = "jobs", .files = &disk.files(), .clock = &clock, .vfs = disk.vfs()});
  ASSERT_TRUE(store.ok()) << store.status();
  const absl::StatusOr<Recovery> recovery = (*store)->Recover([](const QueuedTask&) {});
  ASSERT_TRUE(recovery.ok()) << recovery.status();
  EXPECT_EQ(recovery->queued, 1);
  const absl::StatusOr<JobRecord> job = (*store)->Get("alice", "job-1-00112233445566778899aabbccddeeff");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->request->parameters.prompt, "red apple");
  EXPECT_EQ(job->tasks[0].blame, Blame());
  EXPECT_TRUE((*store)->Claim(1).ok());
}

// Version 6 had only calendar times. The clock was three days ahead when job 3 ended; job 5 was damaged.
TEST(JobStoreSchema, KeepsWhatHadEndedForItsRetentionFromTheFirstStartOn) {
  FaultyDisk disk;
  FakeClock clock;
  const int64_t now = absl::ToUnixMicros(clock.Now()), hour = 3600000000;
  {
    absl::StatusOr<std::unique_ptr<SqliteDatabase>> database =
        SqliteDatabase::Open({.path = "jobs", .vfs = disk.vfs()});
    ASSERT_TRUE(database.ok()) << database.status();
    ASSERT_EQ((*database)->Execute(kVersion1), absl::OkStatus());
    ASSERT_EQ(MigrateSchema(**database, 6), absl::OkStatus());
    const auto add = [&](int64_t number, int64_t ended, int64_t retention) {
      const std::string sql = absl::StrCat(
          "INSERT INTO jobs SELECT ", number, ", token, tenant, tasks, created, deadline, ", ended + retention,
          ", request, checksum, 3 FROM jobs WHERE number = 1; INSERT INTO tasks(number, job, state, ended) VALUES(",
          number, ", ", number, ", 3, ", ended, ")");
      ASSERT_EQ((*database)->Execute(sql.c_str()), absl::OkStatus());
    };
    add(2, now - 100 * hour, 24 * hour);  // not swept yet
    add(3, now + 72 * hour, 24 * hour);
    add(4, now - hour, 2 * hour);
    add(5, now, 0);
  }
  const absl::StatusOr<std::unique_ptr<JobStore>> store =
      SqliteJobStore::Open({.path = "jobs", .files = &disk.files(), .clock = &clock, .vfs = disk.vfs()});
  ASSERT_TRUE(store.ok()) << store.status();
  const auto sweep = [&](absl::Duration after) {
    clock.Advance(after);
    return (*store)->Sweep(100)->jobs;
  };
  EXPECT_EQ(sweep(absl::Hours(2)), 0);
  EXPECT_EQ(sweep(absl::Seconds(1)), 1) << "the one that was kept for two hours";
  EXPECT_EQ(sweep(absl::Hours(22) - absl::Seconds(1)), 0);
  EXPECT_EQ(sweep(absl::Seconds(1)), 3);
}

TEST(JobStoreSchema, CountsUsageFromTheFirstStartAfterVersion7On) {
  FaultyDisk disk;
  FakeClock clock;
  {
    absl::StatusOr<std::unique_ptr<SqliteDatabase>> database =
        SqliteDatabase::Open({.path = "jobs", .vfs = disk.vfs()});
    ASSERT_TRUE(database.ok()) << database.status();
    ASSERT_EQ((*database)->Execute(kVersion1), absl::OkStatus());
    ASSERT_EQ(MigrateSchema(**database, 7), absl::OkStatus());
  }
  const absl::CivilDay today = absl::ToCivilDay(clock.Now(), absl::UTCTimeZone());
  for (const int64_t images : {0, 1}) {
    const absl::StatusOr<std::unique_ptr<JobStore>> store =
        SqliteJobStore::Open({.path = "jobs", .files = &disk.files(), .clock = &clock, .vfs = disk.vfs()});
    ASSERT_TRUE(store.ok()) << store.status();
    const absl::StatusOr<std::vector<DayUsage>> rows = (*store)->Usage({.since = today, .until = today + 1});
    ASSERT_TRUE(rows.ok()) << rows.status();
    int64_t counted = 0;
    for (const DayUsage& row : *rows) counted += row.usage.images;
    EXPECT_EQ(counted, images);
    if (images > 0) break;
    const absl::StatusOr<ClaimedTask> claimed = (*store)->Claim(1);
    ASSERT_TRUE(claimed.ok()) << claimed.status();
    const KeyUsage usage = {.key = "alice", .model = "m", .images = 1};
    const ImageOrigin origin = {.width = 8, .height = 8, .layout = "serial", .usage = usage};
    ASSERT_EQ((*store)->Finish(claimed->claim, "bytes", origin), absl::OkStatus());
  }
}

// Tests every job of one to three tasks in version 2.
TEST(JobStoreSchema, GivesEachJobTheStateOfItsTasks) {
  FaultyDisk disk;
  absl::StatusOr<std::unique_ptr<SqliteDatabase>> opened = SqliteDatabase::Open({.path = "jobs", .vfs = disk.vfs()});
  ASSERT_TRUE(opened.ok()) << opened.status();
  SqliteDatabase& database = **opened;
  ASSERT_EQ(database.Execute(kVersion1), absl::OkStatus());
  ASSERT_EQ(MigrateSchema(database, 2), absl::OkStatus());
  ASSERT_EQ(database.Execute("DELETE FROM jobs; DELETE FROM tasks"), absl::OkStatus());
  std::map<int64_t, JobState> expected;
  int64_t number = 1;
  for (int tasks = 1, combinations = kTaskStates; tasks <= 3; ++tasks, combinations *= kTaskStates) {
    for (int combination = 0; combination < combinations; ++combination) {
      std::string sql =
          absl::StrCat("INSERT INTO jobs(number, token, tenant, tasks, created, request, checksum) VALUES(", number,
                       ", 't', 'alice', ", tasks, ", 0, x'00', x'00')");
      std::vector<TaskState> states;
      for (int task = 0, left = combination; task < tasks; ++task, left /= kTaskStates) {
        states.push_back(static_cast<TaskState>(left % kTaskStates));
        absl::StrAppend(&sql, "; INSERT INTO tasks(number, job, state) VALUES(", number + task, ", ", number, ", ",
                        left % kTaskStates, ")");
      }
      ASSERT_EQ(database.Execute(sql.c_str()), absl::OkStatus());
      expected[number] = StateOf(states);
      number += tasks;
    }
  }
  ASSERT_EQ(MigrateSchema(database, 3), absl::OkStatus());
  absl::StatusOr<SqliteStatement> select = database.Prepare("SELECT number, state FROM jobs");
  ASSERT_TRUE(select.ok()) << select.status();
  std::map<int64_t, JobState> found;
  while (*select->Step()) found[select->Int(0)] = static_cast<JobState>(select->Int(1));
  EXPECT_EQ(found, expected);
  EXPECT_EQ(found.size(), 6u + 36u + 216u);
}

TEST(JobStoreSchema, LetsIdsOfBeforeStandAndHidesTheNumbersOfLaterOnes) {
  FaultyDisk disk;
  FakeClock clock;
  {
    absl::StatusOr<std::unique_ptr<SqliteDatabase>> database =
        SqliteDatabase::Open({.path = "jobs", .vfs = disk.vfs()});
    ASSERT_TRUE(database.ok()) << database.status();
    ASSERT_EQ((*database)->Execute(kVersion1), absl::OkStatus());
    ASSERT_EQ(MigrateSchema(**database, 3), absl::OkStatus());
  }
  const std::string old = "job-1-00112233445566778899aabbccddeeff";
  std::vector<std::string> later;
  for (int opened = 0; opened < 3; ++opened) {
    absl::StatusOr<std::unique_ptr<JobStore>> store =
        SqliteJobStore::Open({.path = "jobs", .files = &disk.files(), .clock = &clock, .vfs = disk.vfs()});
    ASSERT_TRUE(store.ok()) << store.status();
    const absl::StatusOr<JobRecord> job = (*store)->Get("alice", old);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->id, old);
    if (opened == 0) {
      const absl::StatusOr<ClaimedTask> claimed = (*store)->Claim(1);
      ASSERT_TRUE(claimed.ok()) << claimed.status();
      ASSERT_EQ((*store)->Finish(claimed->claim, "bytes", {.width = 8, .height = 8, .layout = "serial"}),
                absl::OkStatus());
    }
    const std::string image = (*store)->Get("alice", old)->tasks[0].image->id;
    EXPECT_EQ(image.substr(0, 6), "img-1-");
    EXPECT_EQ(ReadBytes((*store)->OpenImage("alice", image)).value_or(""), "bytes");
    EXPECT_EQ((*store)->Get("alice", "job-1-00112233445566778899aabbccddeef0").status().code(),
              absl::StatusCode::kNotFound);
    EXPECT_EQ((*store)->Get("bob", old).status().code(), absl::StatusCode::kNotFound);
    for (const std::string& id : later) {
      EXPECT_EQ((*store)->Get("alice", id)->id, id) << "it is the same with the next process";
      std::string other = id;
      other[19] = other[19] == '0' ? '1' : '0';  // last digit of the number
      EXPECT_EQ((*store)->Get("alice", other).status().code(), absl::StatusCode::kNotFound);
    }
    const absl::StatusOr<SubmittedJob> submitted = (*store)->Submit({.tenant = "alice", .request = *job->request});
    ASSERT_TRUE(submitted.ok()) << submitted.status();
    later.push_back(submitted->job.id);
    EXPECT_EQ(later.back().size(), 52u) << later.back();
    EXPECT_EQ(later.back().rfind('-'), 3u) << "no number of its own";
    const absl::StatusOr<JobRecordPage> page = (*store)->List("alice", 1, "");
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_EQ(page->jobs[0].id, later.back());
    const std::string next = (*store)->List("alice", 1, page->next)->jobs[0].id;
    EXPECT_EQ(next, opened == 0 ? old : later[later.size() - 2]);
  }
}

TEST(JobStoreSchema, OfTwoStoresHidesTheSameNumbersOtherwise) {
  std::string pages[2];
  for (std::string& page : pages) {
    FaultyDisk disk;
    absl::StatusOr<std::unique_ptr<SqliteDatabase>> database =
        SqliteDatabase::Open({.path = "jobs", .vfs = disk.vfs()});
    ASSERT_TRUE(database.ok()) << database.status();
    ASSERT_EQ(MigrateSchema(**database, SqliteJobStore::kSchemaVersion), absl::OkStatus());
    const absl::StatusOr<RecordIds> ids = ReadRecordIds(**database);
    ASSERT_TRUE(ids.ok()) << ids.status();
    page = ids->PageId(1);
    ASSERT_EQ((*database)->Execute("DELETE FROM record_ids"), absl::OkStatus());
    EXPECT_EQ(ReadRecordIds(**database).status().code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_NE(pages[0], pages[1]);
}

// Every version of the program reads the rows of every other.
TEST(JobStoreSchema, StoresRowsWithTheBytesAndTypesThatTheyAlwaysHad) {
  using std::string_literals::operator""s;
  FaultyDisk disk;
  absl::StatusOr<std::unique_ptr<SqliteDatabase>> opened = SqliteDatabase::Open({.path = "jobs", .vfs = disk.vfs()});
  ASSERT_TRUE(opened.ok()) << opened.status();
  SqliteDatabase& database = **opened;
  ASSERT_EQ(MigrateSchema(database, SqliteJobStore::kSchemaVersion), absl::OkStatus());
  const auto at = [](int64_t seconds) { return absl::FromUnixSeconds(1'700'000'000 + seconds); };
  const JobRow job = {.number = 1,
                      .token = "token",
                      .tenant = "alice",
                      .tasks = 3,
                      .created = at(0),
                      .deadline = at(60),
                      .request = "request\0\xff"s};
  ASSERT_EQ(InsertJob(database, job), absl::OkStatus());
  ASSERT_TRUE(InsertIdempotencyKey(database, job, "hash", "digest\0"s).ok());
  StateCounts counts{};
  const auto move = [&](uint64_t task, TaskMove to) {
    to.running = absl::Hours(1);
    to.retention = absl::Hours(24);
    const absl::StatusOr<TaskRow> row = FindTask(database, task);
    ASSERT_TRUE(row.ok()) << row.status();
    ASSERT_EQ(MoveTask(database, *row, to, counts), absl::OkStatus());
  };
  for (const uint64_t task : {1, 2, 3}) move(task, {.to = TaskState::kRunning, .now = at(1)});
  move(1, {.to = TaskState::kDone, .now = at(2), .image = "image\0\xff"s});
  move(2, {.to = TaskState::kFailed, .now = at(3), .error = base::ErrorOfField("steps", " is 7")});
  move(3, {.to = TaskState::kQueued, .now = at(4), .blame = Blame{.deaths = 2, .isolated = true}});
  move(3, {.to = TaskState::kCancelled, .now = at(5)});
  const auto rows = [&](const char* sql) {
    std::string text;
    EXPECT_TRUE(database.Visit(sql, {}, [&](const SqlRow& row) { absl::StrAppend(&text, row.Bytes(0), "\n"); }).ok());
    return text;
  };
#define COMMA " || ',' || "
  EXPECT_EQ(rows("SELECT quote(number)" COMMA "quote(token)" COMMA "quote(tenant)" COMMA "quote(tasks)" COMMA
                 "quote(created)" COMMA "quote(deadline)" COMMA "quote(kept_until)" COMMA "quote(request)" COMMA
                 "quote(checksum)" COMMA "quote(state) FROM jobs"),
            "1,'token','alice',3,1700000000000000,1700000060000000,90000000000,X'7265717565737400FF',"
            "X'87F9225C80EAEA04E81D6F79DB73E2A1227882D4D1F3BDF354AB1E41CCA7875A',3\n");
  EXPECT_EQ(rows("SELECT quote(number)" COMMA "quote(job)" COMMA "quote(state)" COMMA "quote(attempt)" COMMA
                 "quote(strikes)" COMMA "quote(alone)" COMMA "quote(started)" COMMA "quote(ended)" COMMA
                 "quote(error_code)" COMMA "quote(error)" COMMA "quote(error_field)" COMMA
                 "quote(image) FROM tasks ORDER BY number"),
            "1,1,2,1,0,0,1700000001000000,1700000002000000,NULL,NULL,NULL,X'696D61676500FF'\n"
            "2,1,3,1,0,0,1700000001000000,1700000003000000,3,'steps is 7','steps',NULL\n"
            "3,1,4,1,2,1,1700000001000000,1700000005000000,NULL,NULL,NULL,NULL\n");
  EXPECT_EQ(
      rows("SELECT quote(tenant)" COMMA "quote(key_hash)" COMMA "quote(digest)" COMMA "quote(job) FROM idempotency"),
      "'alice',X'68617368',X'64696765737400',1\n");
#undef COMMA
}

absl::Status OpenAfter(const char* sql) {
  FaultyDisk disk;
  FakeClock clock;
  {
    absl::StatusOr<std::unique_ptr<SqliteDatabase>> database =
        SqliteDatabase::Open({.path = "jobs", .vfs = disk.vfs()});
    if (!database.ok()) return database.status();
    if (absl::Status status = (*database)->Execute(sql); !status.ok()) return status;
  }
  return SqliteJobStore::Open({.path = "jobs", .files = &disk.files(), .clock = &clock, .vfs = disk.vfs()}).status();
}

TEST(JobStoreSchema, RefusesAVersionOfTheFuture) {
  EXPECT_EQ(OpenAfter("PRAGMA user_version = 99").code(), absl::StatusCode::kFailedPrecondition);
}

TEST(JobStoreSchema, RefusesADatabaseOfAnotherProgram) {
  EXPECT_EQ(OpenAfter("CREATE TABLE music(title TEXT)").code(), absl::StatusCode::kDataLoss);
}

TEST(JobStoreSchema, RefusesAFileThatIsNoDatabase) {
  FaultyDisk disk;
  FakeClock clock;
  ASSERT_EQ(OpenAfter("SELECT 1"), absl::OkStatus());
  *disk.MakeFile("jobs") = std::string(8192, 'x');
  EXPECT_EQ(SqliteJobStore::Open({.path = "jobs", .files = &disk.files(), .clock = &clock, .vfs = disk.vfs()})
                .status()
                .code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace tessera::server
