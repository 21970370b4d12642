// Tests the parts of the service on a job store in memory, with fake groups.
#include "tests/support/serving_parts.h"

#include <optional>
#include <string>
#include <vector>

#include "server/api/caller.h"
#include "server/api/job.h"
#include "server/api/job_request.h"
#include "server/serving/watch_hub.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;

TEST(ServingPartsTest, AClaimIsReportedAfterItIsMade) { EXPECT_TRUE(AClaimIsReportedAfterItIsMade()); }

TEST(ServingPartsTest, AJobThatEndsWhileItsStateIsReadIsSeenToEnd) {
  EXPECT_TRUE(AJobThatEndsWhileItsStateIsReadIsSeenToEnd());
}

TEST(ServingPartsTest, ALateNoticeTakesNothingFromAGroup) { EXPECT_TRUE(ALateNoticeTakesNothingFromAGroup()); }

TEST(ServingPartsTest, AFinishedTaskIsNotQueuedAgainWhenItsGroupEnds) {
  EXPECT_TRUE(AFinishedTaskIsNotQueuedAgainWhenItsGroupEnds());
}

TEST(ServingPartsTest, TheKeyThatWasServedLeastIsNext) { EXPECT_TRUE(TheKeyThatWasServedLeastIsNext()); }

TEST(ServingPartsTest, EveryFieldChangesTheDigest) { EXPECT_TRUE(EveryFieldChangesTheDigest()); }

TEST(ServingPartsTest, AnImageIsReportedFromItsStartToItsEnd) {
  ServingParts parts;
  const TaskId task = parts.Submit();
  parts.Watch();
  parts.RunUntilDecoded(task);
  parts.WaitUntilStored();
  const std::vector<JobEvent> events = parts.Events();
  ASSERT_EQ(events.size(), 5u);
  EXPECT_TRUE(std::holds_alternative<QueuedEvent>(events[0]));
  EXPECT_TRUE(std::holds_alternative<StartedEvent>(events[1]));
  EXPECT_TRUE(std::holds_alternative<StepEvent>(events[2]));
  EXPECT_TRUE(std::holds_alternative<ImageEvent>(events[3]));
  ASSERT_TRUE(std::holds_alternative<EndedEvent>(events[4]));
  EXPECT_EQ(std::get<EndedEvent>(events[4]).job.state, JobState::kDone);
}

// The request asks for a schedule of six steps, of which the worker runs the last four.
TEST(ServingPartsTest, EventsStateAndPreviewsCountTheStepsThatTheWorkerRuns) {
  ServingParts parts;
  JobRequest request = ServingParts::Request(/*steps=*/6);
  request.partial_images = 1;
  const TaskId task = parts.Submit(request);
  parts.Watch();
  const auto job = [&] {
    const ServiceMonitor::Lock lock = parts.monitor.Acquire();
    return JobOf(parts.context, lock, *parts.store.Get(kTenant, parts.job));
  };
  EXPECT_EQ(job().steps_total, 6) << "expected until the worker has started it";
  EXPECT_THAT(parts.jobs.Next(kGroup).start, ElementsAre(task));
  ASSERT_TRUE(parts.jobs.Claim(kGroup, task).ok());
  EXPECT_THAT(parts.jobs.OnStarted(kGroup, task, {.first_step = 2, .steps = 4}), ElementsAre(2));
  EXPECT_EQ(job().steps_total, 4);
  for (int step = 1; step <= 4; ++step) {
    const StepPlan plan = parts.jobs.Next(kGroup);
    EXPECT_THAT(plan.step, ElementsAre(task)) << step;
    EXPECT_EQ(plan.decode.empty(), step < 4) << step;
    parts.jobs.OnStepped(kGroup, {task}, 1);
  }
  EXPECT_EQ(job().steps_done, 4);
  int32_t last = 0;
  for (const JobEvent& event : parts.Events()) {
    const auto* step = std::get_if<StepEvent>(&event);
    if (step == nullptr) continue;
    EXPECT_EQ(step->step, ++last);
    EXPECT_EQ(step->steps, 4);
  }
  EXPECT_EQ(last, 4);
}

TEST(ServingPartsTest, WhatRanInAGroupThatEndedIsQueuedAgain) {
  ServingParts parts;
  const TaskId task = parts.Submit();
  EXPECT_THAT(parts.jobs.Next(kGroup).start, ElementsAre(task));
  ASSERT_TRUE(parts.jobs.Claim(kGroup, task).ok());
  parts.jobs.OnStarted(kGroup, task, {.steps = 1});
  parts.jobs.OnDied(kGroup, absl::UnavailableError("the worker died"), /*blameless=*/true);
  EXPECT_EQ(parts.Waiting(), 1);
  EXPECT_EQ(parts.store.StateOfTask(task), TaskState::kQueued);
}

// A job of the group "m-0", of one rank, which has made a step of the two that the job takes.
struct CountedTask {
  CountedTask() {
    parts.metrics.NameKeys({kTenant});
    task = parts.Submit(ServingParts::Request(/*steps=*/2));
    Begin();
  }
  void Begin() {
    EXPECT_THAT(parts.jobs.Next(kGroup).start, ElementsAre(task));
    EXPECT_TRUE(parts.jobs.Claim(kGroup, task).ok());
    parts.jobs.OnStarted(kGroup, task, {.steps = 2, .seconds = 0.5});
    EXPECT_THAT(parts.jobs.Next(kGroup).step, ElementsAre(task));
    parts.jobs.OnStepped(kGroup, {task}, 1);
  }
  // Complete once the task is forgotten.
  std::string Metrics() { return parts.metrics.Text({}); }

  ServingParts parts;
  TaskId task = 0;
};

// Between the write of an end and the moment when the task is forgotten, a job is read as it will be read from then on.
TEST(ServingPartsTest, AJobThatHasEndedReportsNothingOfTheAttemptThatIsNotForgottenYet) {
  CountedTask counted;
  const auto job = [&] {
    const ServiceMonitor::Lock lock = counted.parts.monitor.Acquire();
    return JobOf(counted.parts.context, lock, *counted.parts.store.Get(kTenant, counted.parts.job));
  };
  EXPECT_EQ(job().layout, "serial");
  EXPECT_EQ(job().steps_done, 1);
  std::optional<TaskAttempt> attempt;
  {
    const ServiceMonitor::Lock lock = counted.parts.monitor.Acquire();
    attempt = counted.parts.monitor.tasks(lock).Find(counted.task)->attempt;
  }
  ASSERT_TRUE(attempt.has_value());
  ASSERT_TRUE(counted.parts.store.Fail(*attempt, absl::InternalError("x"), {}).ok());
  EXPECT_EQ(job().state, JobState::kFailed);
  EXPECT_EQ(job().layout, "");
  EXPECT_EQ(job().steps_done, 0);
}

TEST(ServingPartsTest, TheUsageOfAnImageIsThatOfTheRunThatMadeIt) {
  CountedTask counted;
  counted.parts.jobs.OnDied(kGroup, absl::UnavailableError("the worker died"), /*blameless=*/true);
  counted.parts.monitor.scheduler(counted.parts.monitor.Acquire()).groups().OnReady(kGroup);
  counted.Begin();
  EXPECT_THAT(counted.parts.jobs.Next(kGroup).decode, ElementsAre(counted.task));
  counted.parts.jobs.OnStepped(kGroup, {counted.task}, 1);
  counted.parts.jobs.OnDecoded(kGroup, counted.task, {.width = 1, .height = 1, .bytes = {1, 2, 3}}, {.steps = 2}, 0.25);
  counted.parts.WaitUntilStored();
  counted.parts.WaitUntilForgotten(counted.task);
  EXPECT_THAT(counted.parts.store.usage(),
              ElementsAre(KeyUsage{.key = kTenant, .model = "m", .images = 1, .steps = 2, .device_seconds = 2.75}));
  EXPECT_THAT(counted.Metrics(), testing::HasSubstr("tessera_usage_steps_total{key=\"me\",model=\"m\"} 2\n"));
}

TEST(ServingPartsTest, TheUsageOfAFailureIsCountedOnce) {
  CountedTask counted;
  counted.parts.jobs.OnFailed(kGroup, counted.task, absl::InternalError("x"));
  counted.parts.jobs.OnEnded(kGroup, counted.task);
  counted.parts.WaitUntilForgotten(counted.task);
  EXPECT_THAT(counted.parts.store.usage(),
              ElementsAre(KeyUsage{.key = kTenant, .model = "m", .steps = 1, .device_seconds = 1.5}));
  EXPECT_THAT(counted.Metrics(), testing::HasSubstr("tessera_usage_steps_total{key=\"me\",model=\"m\"} 1\n"));
}

TEST(ServingPartsTest, AdaptersAreNeededUntilTheirJobEndsAndAreANamedFailureWithoutTheirBytes) {
  ServingParts parts;
  const std::string digest(64, 'a');
  JobRequest request = ServingParts::Request();
  request.parameters.adapters = {{.name = "style", .digest = digest}};
  const TaskId task = parts.Submit(request);
  EXPECT_THAT(parts.jobs.NeededContents(parts.monitor.Acquire()), ElementsAre(digest));
  EXPECT_THAT(parts.jobs.Next(kGroup).start, ElementsAre(task));
  const absl::Status claimed = parts.jobs.Claim(kGroup, task).status();
  EXPECT_EQ(claimed.code(), absl::StatusCode::kDataLoss);
  parts.jobs.OnEnded(kGroup, task);
  parts.WaitUntilForgotten(task);
  EXPECT_EQ(parts.store.StateOfTask(task), TaskState::kFailed);
  EXPECT_EQ(ErrorOf(*parts.store.Get(kTenant, parts.job)).message(), claimed.message());
  EXPECT_THAT(std::string(claimed.message()), testing::HasSubstr("adapter 'style' that the job was accepted with"));
  EXPECT_THAT(parts.jobs.NeededContents(parts.monitor.Acquire()), testing::IsEmpty());
}

TEST(ServingPartsTest, ACancelledTaskIsOverAtOnceWhereItOnlyWaited) {
  ServingParts parts;
  parts.Submit();
  parts.Watch();
  const absl::StatusOr<Job> cancelled = parts.jobs.Cancel(kTenant, parts.job);
  ASSERT_TRUE(cancelled.ok());
  EXPECT_EQ(cancelled->state, JobState::kCancelled);
  EXPECT_EQ(parts.Waiting(), 0);
  EXPECT_TRUE(PlaceOf<EndedEvent>(parts.Events()).has_value());
}

TEST(ServingPartsTest, MaintenanceFailsWhatIsTooLateToBegin) {
  ServingParts parts;
  const TaskId task = parts.Submit(absl::Seconds(1));
  parts.Watch();
  parts.maintenance.RunMaintenance();
  EXPECT_EQ(parts.Waiting(), 1);
  parts.store.SetNow(parts.store.Now() + absl::Seconds(2));
  parts.maintenance.RunMaintenance();
  EXPECT_EQ(parts.Waiting(), 0);
  parts.WaitUntilForgotten(task);
  EXPECT_EQ(parts.store.StateOfTask(task), TaskState::kFailed);
  EXPECT_EQ(parts.groups.replaced, 2);
  EXPECT_EQ(parts.store.sweeps(), 1) << "not every time";
}

TEST(ServingPartsTest, ATaskWhoseDeadlinePassesWhileItIsClaimedFails) {
  ServingParts parts;
  const TaskId task = parts.Submit(absl::Seconds(1));
  EXPECT_THAT(parts.jobs.Next(kGroup).start, ElementsAre(task));
  parts.store.on_claim = [&] {
    parts.store.SetNow(parts.store.Now() + absl::Seconds(2));
    parts.maintenance.RunMaintenance();
  };
  EXPECT_TRUE(absl::IsDeadlineExceeded(parts.jobs.Claim(kGroup, task).status()));
  parts.jobs.OnEnded(kGroup, task);
  parts.WaitUntilForgotten(task);
  EXPECT_EQ(parts.store.StateOfTask(task), TaskState::kFailed);
}

TEST(ServingPartsTest, ATaskWhoseDeadlinePassesInAGroupThatDiesBeforeItsClaimFails) {
  ServingParts parts;
  const TaskId task = parts.Submit(absl::Seconds(1));
  EXPECT_THAT(parts.jobs.Next(kGroup).start, ElementsAre(task));
  parts.store.SetNow(parts.store.Now() + absl::Seconds(2));
  parts.maintenance.RunMaintenance();
  parts.jobs.OnDied(kGroup, absl::UnavailableError("the worker died"), /*blameless=*/true);
  parts.maintenance.RunMaintenance();
  parts.WaitUntilForgotten(task);
  EXPECT_EQ(parts.store.StateOfTask(task), TaskState::kFailed);
}

TEST(ServingPartsTest, WhoWaitsForAStuckDiskIsReleasedAfterItsTimeout) {
  ServingParts parts;
  const TaskId task = parts.Submit();
  parts.Watch();
  {
    const ServiceMonitor::Lock lock = parts.monitor.Acquire();
    parts.monitor.tasks(lock).Find(task)->stuck = true;
  }
  parts.store.SetTrouble(StorageState::kFull, absl::Milliseconds(1));
  parts.maintenance.RunMaintenance();
  EXPECT_TRUE(parts.hub.IsWatched(parts.job)) << "its time is not over";
  parts.store.SetTrouble(StorageState::kFull, absl::Seconds(1));
  parts.maintenance.RunMaintenance();
  EXPECT_FALSE(parts.hub.IsWatched(parts.job));
  const std::vector<JobEvent> events = parts.Events();
  ASSERT_TRUE(std::holds_alternative<ReleasedEvent>(events.back()));
  EXPECT_EQ(ErrorCode(std::get<ReleasedEvent>(events.back()).reason), "storage_full");
}

TEST(ServingPartsTest, NothingIsAcceptedWhileTheStorageIsInTroubleOrTheServiceDrains) {
  ServingParts parts;
  parts.store.SetTrouble(StorageState::kMoved);
  const Caller caller = {.tenant = kTenant};
  EXPECT_EQ(ErrorCode(parts.admission.Submit(caller, ServingParts::Request(), std::nullopt).status()),
            "storage_unavailable");
  parts.store.SetTrouble(StorageState::kOk);
  parts.Submit();
  parts.monitor.StartDraining(parts.monitor.Acquire());
  EXPECT_EQ(ErrorCode(parts.admission.Submit(caller, ServingParts::Request(), std::nullopt).status()), "draining");
  EXPECT_EQ(parts.Waiting(), 1);
}

}  // namespace
}  // namespace tessera::server
