// Tests the job store on a disk that loses power, fails, tears writes and becomes full, at every operation.
#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "server/api/job.h"
#include "server/jobs/new_job.h"
#include "server/jobs/sqlite_job_store.h"
#include "tests/jobs/faulty_disk.h"
#include "tests/jobs/job_oracle.h"
#include "tests/jobs/job_workload.h"
#include "tests/support/fault_runs.h"

namespace tessera {
namespace {

constexpr int kSteps = 30;

class StoreOnFaultyDisk {
 public:
  explicit StoreOnFaultyDisk(uint64_t seed) : seed_(seed) {}

  absl::Status Open() {
    workload_.reset();
    store_.reset();
    absl::StatusOr<std::unique_ptr<server::JobStore>> store =
        server::SqliteJobStore::Open({.path = "jobs",
                                      .files = &disk_.files(),
                                      .clock = &clock_,
                                      .vfs = disk_.vfs(),
                                      .most_committed_bytes = kWorkloadCommittedBytes});
    if (!store.ok()) return store.status();
    store_ = *std::move(store);
    workload_ = std::make_unique<JobWorkload>(*store_, ++seed_, [this](const Ack& ack) { oracle_.Hear(ack); });
    absl::StatusOr<server::Recovery> recovery =
        store_->Recover([this](const server::QueuedTask& task) { workload_->Adopt(task.id, task.job); });
    return recovery.status();
  }

  // Makes random calls until the disk fails or `steps` are done.
  bool Run(int steps) {
    for (int i = 0; i < steps; ++i) {
      if (!workload_->Step()) return false;
    }
    return true;
  }

  // The process ends together with the power.
  void Restart() {
    workload_.reset();
    store_.reset();
    disk_.Restart(++seed_);
  }

  OracleTally End() {
    EXPECT_TRUE(workload_->Drain());
    // Only the disk shows what the last answers were.
    Restart();
    EXPECT_TRUE(Open().ok());
    EXPECT_TRUE(workload_->Drain());
    return oracle_.Judge(*store_);
  }

  FaultyDisk& disk() { return disk_; }
  server::JobStore& store() { return *store_; }

 private:
  uint64_t seed_;
  base::SystemClock clock_;
  FaultyDisk disk_;
  JobOracle oracle_;
  std::unique_ptr<server::JobStore> store_;
  std::unique_ptr<JobWorkload> workload_;
};

// Returns the number of disk operations of one undisturbed run.
int64_t OperationsOfARun(uint64_t seed) {
  StoreOnFaultyDisk machine(seed);
  EXPECT_TRUE(machine.Open().ok());
  EXPECT_TRUE(machine.Run(kSteps));
  return machine.disk().operations();
}

OracleTally CutPowerAt(uint64_t seed, int64_t operation, bool syncs_are_lies) {
  StoreOnFaultyDisk machine(seed);
  machine.disk().SetSyncsAreLies(syncs_are_lies);
  machine.disk().Plan(DiskFault::kPowerCut, operation);
  const absl::Status opened = machine.Open();
  if (opened.ok()) machine.Run(kSteps);
  machine.Restart();
  machine.disk().SetSyncsAreLies(false);
  const absl::Status again = machine.Open();
  // If syncs are not executed, there may be no usable database.
  if (!again.ok()) return {.lost = 1};
  return machine.End();
}

class PowerCut : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(, PowerCut, testing::ValuesIn(FaultSeeds()), kSeedName);

TEST_P(PowerCut, AtAnyWriteLosesNothingThatWasAcknowledged) {
  const uint64_t seed = static_cast<uint64_t>(GetParam());
  OracleTally total;
  const int64_t operations = OperationsOfARun(seed);
  ASSERT_GT(operations, 100);
  for (int64_t operation = 0; operation < operations; ++operation) {
    const OracleTally tally = CutPowerAt(seed, operation, false);
    ASSERT_TRUE(tally.clean()) << "power cut at operation " << operation << ": " << tally.Line();
    total.Add(tally);
  }
  std::cout << operations << " power cuts: " << total.Line() << std::endl;
  EXPECT_GT(total.done, operations);
}

TEST_P(PowerCut, AgainAndAgainOnOneDiskLosesNothingThatWasAcknowledged) {
  StoreOnFaultyDisk machine(static_cast<uint64_t>(76 + GetParam()));
  for (int round = 0; round < 60; ++round) {
    machine.disk().Plan(DiskFault::kPowerCut, 20 + round * 13 % 400);
    if (machine.Open().ok()) machine.Run(1000);
    ASSERT_TRUE(machine.disk().dead());
    machine.Restart();
  }
  ASSERT_TRUE(machine.Open().ok());
  const OracleTally tally = machine.End();
  std::cout << "60 power cuts on one disk: " << tally.Line() << std::endl;
  EXPECT_TRUE(tally.clean()) << tally.Line();
  EXPECT_GT(tally.acked, 500);
}

// A claim is committed without a sync. Whatever remains of it must not prevent the next claim.
TEST(PowerCutTest, AfterAClaimLeavesATaskThatIsMadeOnce) {
  int lost = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    StoreOnFaultyDisk machine(seed);
    ASSERT_TRUE(machine.Open().ok());
    const absl::StatusOr<server::SubmittedJob> job =
        machine.store().Submit({.tenant = kOracleTenant, .request = SmallRequest(1)});
    ASSERT_TRUE(job.ok()) << job.status();
    const uint64_t task = job->job.tasks[0].id;
    ASSERT_TRUE(machine.store().Claim(task).ok());
    machine.disk().Plan(DiskFault::kPowerCut, 0);
    machine.Restart();
    ASSERT_TRUE(machine.Open().ok());
    const absl::StatusOr<server::ClaimedTask> again = machine.store().Claim(task);
    ASSERT_TRUE(again.ok()) << again.status();
    if (again->claim.attempt == 1) ++lost;
    ASSERT_TRUE(machine.store().Finish(again->claim, "image", {.width = 64, .height = 64, .layout = "serial"}).ok());
    const absl::StatusOr<server::JobRecord> done = machine.store().Get(kOracleTenant, job->job.id);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(server::StateOf(*done), server::JobState::kDone);
  }
  EXPECT_GT(lost, 0) << "or the claim was synced";
}

// The negative control: the oracle must notice a disk that does not sync.
TEST(PowerCutTest, OnADiskThatLiesAboutSyncsIsNoticedByTheOracle) {
  int noticed = 0;
  for (int64_t operation = 100; operation < 200; operation += 10) {
    if (!CutPowerAt(1, operation, true).clean()) ++noticed;
  }
  EXPECT_GT(noticed, 0);
}

class DiskFaults : public testing::TestWithParam<std::tuple<DiskFault, int>> {};

TEST_P(DiskFaults, AtAnyWriteFailTheCallAndNothingElse) {
  const auto [fault, number] = GetParam();
  const uint64_t seed = 1 + static_cast<uint64_t>(number);
  OracleTally total;
  const int64_t operations = OperationsOfARun(seed);
  for (int64_t operation = 0; operation < operations; ++operation) {
    StoreOnFaultyDisk machine(seed);
    machine.disk().Plan(fault, operation);
    const absl::Status opened = machine.Open();
    if (opened.ok()) machine.Run(kSteps);
    // The same process continues once the disk works again.
    machine.disk().Plan(DiskFault::kNone, 0);
    if (!opened.ok()) {
      ASSERT_TRUE(machine.Open().ok()) << "after a fault at operation " << operation;
    }
    ASSERT_TRUE(machine.Run(10)) << "after a fault at operation " << operation;
    const OracleTally tally = machine.End();
    ASSERT_TRUE(tally.clean()) << "fault at operation " << operation << ": " << tally.Line();
    total.Add(tally);
  }
  std::cout << total.Line() << std::endl;
}

INSTANTIATE_TEST_SUITE_P(Every, DiskFaults,
                         testing::Combine(testing::Values(DiskFault::kError, DiskFault::kTorn, DiskFault::kFull),
                                          testing::ValuesIn(FaultSeeds())),
                         [](const auto& info) {
                           const DiskFault fault = std::get<0>(info.param);
                           const char* name = fault == DiskFault::kError  ? "Error"
                                              : fault == DiskFault::kTorn ? "Torn"
                                                                          : "Full";
                           return absl::StrCat(name, "Seed", std::get<1>(info.param));
                         });

TEST(FullDisk, RefusesSubmissionsWithResourceExhausted) {
  StoreOnFaultyDisk machine(3);
  ASSERT_TRUE(machine.Open().ok());
  machine.disk().Plan(DiskFault::kFull, 0);
  const absl::StatusOr<server::SubmittedJob> refused =
      machine.store().Submit({.tenant = kOracleTenant, .request = SmallRequest(1)});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
}

TEST(FullDisk, IsRememberedUntilAWriteSucceeds) {
  StoreOnFaultyDisk machine(3);
  ASSERT_TRUE(machine.Open().ok());
  EXPECT_TRUE(machine.store().can_write());
  machine.disk().Plan(DiskFault::kFull, 0);
  EXPECT_FALSE(machine.store().Submit({.tenant = kOracleTenant, .request = SmallRequest(1)}).ok());
  EXPECT_FALSE(machine.store().can_write());
  EXPECT_EQ(machine.store().TryWrite().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(machine.store().can_write());
  machine.disk().Plan(DiskFault::kNone, 0);
  EXPECT_TRUE(machine.store().TryWrite().ok());
  EXPECT_TRUE(machine.store().can_write());
  EXPECT_GT(machine.disk().operations(), 1) << "or nothing was synced";
}

}  // namespace
}  // namespace tessera
