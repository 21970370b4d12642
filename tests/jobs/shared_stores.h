// SharedStores opens stores of several servers over one database and one folder of images. Each check returns whether a
// property of them holds. The ordinary tests expect true; the tests with a planted bug expect false.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/jobs/new_job.h"
#include "server/jobs/postgres_job_store.h"
#include "tests/jobs/fake_clock.h"
#include "tests/jobs/faulty_disk.h"
#include "tests/jobs/job_workload.h"
#include "tests/jobs/postgres_cluster.h"
#include "tests/support/wait_until.h"

namespace tessera {

// Returns the cluster that all tests of a process share.
inline PostgresCluster& SharedCluster() {
  static PostgresCluster cluster(/*syncs=*/false);
  return cluster;
}

// Records the last notification of each task. It keeps no open tasks, so in a comparison it requests all of them.
class HeardTasks final : public server::QueueObserver {
 public:
  void OnChanged(const server::JobRecord& job) override {
    const std::lock_guard lock(mutex_);
    for (const server::TaskRecord& task : job.tasks) tasks_[task.id] = task;
  }
  std::vector<uint64_t> Compare(absl::Span<const server::OpenTask> open) override {
    std::vector<uint64_t> all;
    for (const server::OpenTask& task : open) all.push_back(task.task);
    return all;
  }
  void OnGone(uint64_t task) override {}

  // Waits for a notification that the task is in that state and attempt.
  bool Hears(uint64_t task, server::TaskState state, int32_t attempt) {
    return WaitUntil(absl::StrCat("task ", task, " is heard to be ", server::TaskStateName(state)), [&] {
      const std::lock_guard lock(mutex_);
      const auto heard = tasks_.find(task);
      return heard != tasks_.end() && heard->second.state == state && heard->second.attempt == attempt;
    });
  }
  bool IsElsewhere(uint64_t task) {
    const std::lock_guard lock(mutex_);
    return tasks_[task].elsewhere;
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, server::TaskRecord> tasks_;
};

struct SharedStores {
  explicit SharedStores(PostgresCluster& cluster = SharedCluster())
      : cluster(cluster), database(cluster.NewDatabase()) {}

  server::PostgresJobStoreOptions Options(const std::string& name, absl::Duration lease) {
    return {.address = database,
            .name = name,
            .files = &disk.files(),
            .clock = &clock,
            .lease = lease,
            .at_point = [this](absl::string_view point) { at_point(point); }};
  }
  // With a long lease, the store neither renews it nor checks other leases during a test.
  std::unique_ptr<server::JobStore> Open(const std::string& name, absl::Duration lease = absl::Hours(1)) {
    absl::StatusOr<std::unique_ptr<server::JobStore>> store = server::PostgresJobStore::Open(Options(name, lease));
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  static server::JobRecord Submit(server::JobStore& store, int32_t count = 1) {
    const absl::StatusOr<server::SubmittedJob> job =
        store.Submit({.tenant = kOracleTenant, .request = SmallRequest(count)});
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? job->job : server::JobRecord{.tasks = {{.id = 1}}};
  }
  static server::TaskAttempt Claim(server::JobStore& store, uint64_t task) {
    const absl::StatusOr<server::ClaimedTask> claimed = store.Claim(task);
    EXPECT_TRUE(claimed.ok()) << claimed.status();
    return claimed.ok() ? claimed->claim : server::TaskAttempt{};
  }
  static absl::Status Finish(server::JobStore& store, const server::TaskAttempt& attempt) {
    return store.Finish(attempt, ::tessera::ImageBytesOf(attempt), {.width = 64, .height = 64, .layout = "serial"});
  }
  // Simulates a server that has not renewed its lease in time.
  void EndLeaseOf(const std::string& name) {
    cluster.Run(database, absl::StrCat("UPDATE servers SET expires = '-infinity' WHERE name = '", name, "'"));
  }

  PostgresCluster& cluster;
  const server::PostgresAddress database;
  FaultyDisk disk;
  FakeClock clock;
  std::function<void(absl::string_view)> at_point = [](absl::string_view) {};
};

inline bool AServerThatWasGivenUpFinishesNothing() {
  SharedStores stores;
  const auto given_up = stores.Open("given up"), other = stores.Open("other", absl::Seconds(1));
  HeardTasks heard;
  other->Observe(&heard);
  const uint64_t task = SharedStores::Submit(*given_up).tasks[0].id;
  const server::TaskAttempt old = SharedStores::Claim(*given_up, task);
  stores.EndLeaseOf("given up");
  EXPECT_TRUE(heard.Hears(task, server::TaskState::kQueued, old.attempt));
  const server::TaskAttempt current = SharedStores::Claim(*other, task);
  EXPECT_EQ(current.attempt, old.attempt + 1);
  const bool refused = absl::IsFailedPrecondition(given_up->Fail(old, absl::InternalError("late"), {}));
  const bool finishes = SharedStores::Finish(*other, current).ok();
  other->Observe(nullptr);
  return refused && finishes;
}

// Leases do not depend on the servers' clocks.
inline bool LeasesAreOfTheTimeOfTheDatabase() {
  SharedStores stores;
  const auto store = stores.Open("a", absl::Seconds(3));
  const std::string text = "SELECT COUNT(*) FROM servers WHERE expires ";
  const int64_t begun = stores.cluster.Ask(stores.database, "SELECT EXTRACT(EPOCH FROM expires)::bigint FROM servers");
  stores.clock.Advance(absl::Hours(1000));
  WaitUntil("the lease is renewed", [&] {
    return stores.cluster.Ask(stores.database, "SELECT EXTRACT(EPOCH FROM expires)::bigint FROM servers") != begun;
  });
  // It may have ended again by now, but not long ago.
  const std::string now = "BETWEEN clock_timestamp() - interval '5 min' AND clock_timestamp() + interval '4 s'";
  return stores.cluster.Ask(stores.database, text + now) == 1;
}

}  // namespace tessera
