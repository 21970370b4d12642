#include "server/scheduling/request_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/scheduling/scheduler_simulation.h"

namespace tessera::server {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr GroupId kGroup = 1;
// A step of an 8x8 task takes 64 operations.
constexpr double kStepFlops = 64;

GroupDescription Group(int32_t max_rows, GroupId id = kGroup) { return {.id = id, .model = "m", .max_rows = max_rows}; }

// A fixture with one group that makes one step of one 8x8 task in a second.
class SchedulerTest : public testing::Test {
 protected:
  explicit SchedulerTest(int32_t max_rows = 2, const SchedulerOptions& options = {}) : simulation_(options) {
    simulation_.AddGroup(Group(max_rows), kStepFlops);
  }

  // Executes plans by hand and answers everything at once.
  StepPlan NextAnswered() {
    StepPlan plan = scheduler().steps().Next(kGroup, now_);
    for (TaskId task : plan.end) scheduler().steps().OnEnded(kGroup, task);
    for (TaskId task : plan.start) {
      const int32_t expected = scheduler().tasks().Find(task)->spec.steps;
      scheduler().steps().OnStarted(kGroup, task, steps_of_worker_.value_or(expected));
    }
    if (!plan.step.empty()) scheduler().steps().OnStepped(kGroup, seconds_per_step_ * plan.step.size());
    for (TaskId task : plan.decode) scheduler().steps().OnEnded(kGroup, task);
    now_ += absl::Seconds(1);
    return plan;
  }

  void Enqueue(const SchedulerTask& task) {
    SchedulerTask spec = task;
    if (spec.enqueued == absl::InfinitePast()) spec.enqueued = now_;
    const absl::Status status = scheduler().Enqueue(spec, now_);
    ASSERT_TRUE(status.ok()) << status;
  }

  RequestScheduler& scheduler() { return simulation_.scheduler(); }

  SchedulerSimulation simulation_;
  absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);
  double seconds_per_step_ = 1;             // per task
  std::optional<int32_t> steps_of_worker_;  // what the worker runs; absent: what was expected
};

TEST_F(SchedulerTest, RunsATaskForItsStepsAndThenDecodesIt) {
  simulation_.Submit(SmallTask(1, "a", 5));
  simulation_.RunUntilIdle();
  EXPECT_EQ(simulation_.outcomes().at(1).steps, 5);
  EXPECT_TRUE(simulation_.outcomes().at(1).done);
  EXPECT_EQ(scheduler().groups().resident(), 0);
}

TEST_F(SchedulerTest, AKeyGetsBackWhatItWasChargedWhateverItsWeightIsThen) {
  scheduler().keys().SetWeights({{"b", 100}});
  Enqueue(SmallTask(1, "b", 1000));
  NextAnswered();
  scheduler().keys().SetWeights({});
  for (TaskId id = 11; id <= 30; ++id) Enqueue(SmallTask(id, "a", 1));
  for (TaskId id = 31; id <= 50; ++id) Enqueue(SmallTask(id, "b", 1));
  scheduler().Cancel(1);
  int of_a = 0, of_b = 0;
  for (int plan = 0; plan < 10; ++plan) {
    for (const TaskId task : NextAnswered().start) ++(task > 30 ? of_b : of_a);
  }
  EXPECT_GE(of_a, 5);
  EXPECT_NEAR(of_a, of_b, 1);
}

TEST_F(SchedulerTest, StepsATaskOnlyOnceItHasStarted) {
  Enqueue(SmallTask(1, "a", 5));
  const StepPlan plan = scheduler().steps().Next(kGroup, now_);
  EXPECT_THAT(plan.start, ElementsAre(1));
  EXPECT_THAT(plan.step, IsEmpty());
  scheduler().steps().OnStarted(kGroup, 1, 5);
  EXPECT_THAT(scheduler().steps().Next(kGroup, now_).step, ElementsAre(1));
}

// The charge of a task that runs as expected is the reference.
TEST_F(SchedulerTest, RunsAndChargesTheStepsThatTheWorkerReports) {
  const auto charged = [this] { return scheduler().keys().Of("a").charged; };
  Enqueue(SmallTask(1, "a", 3));
  for (int plan = 0; plan < 4; ++plan) NextAnswered();
  const double of_three = charged();
  EXPECT_GT(of_three, 0);
  for (const int32_t expected : {1000, 2}) {
    const double before = charged();
    steps_of_worker_ = 3;
    Enqueue(SmallTask(expected, "a", expected));
    EXPECT_THAT(NextAnswered().start, ElementsAre(expected));
    EXPECT_DOUBLE_EQ(charged() - before, of_three) << "the rest of the expected steps is still charged";
    EXPECT_THAT(NextAnswered().decode, IsEmpty());
    EXPECT_THAT(NextAnswered().decode, IsEmpty());
    EXPECT_THAT(NextAnswered().decode, ElementsAre(expected));
    EXPECT_DOUBLE_EQ(charged() - before, of_three);
    EXPECT_NEAR(scheduler().keys().Of("a").flops, 0, 1e-6);
    EXPECT_TRUE(scheduler().CheckInvariants().ok()) << scheduler().CheckInvariants();
  }
}

TEST_F(SchedulerTest, HasAtMostTwoStepsInFlight) {
  Enqueue(SmallTask(1, "a", 5));
  NextAnswered();
  EXPECT_THAT(scheduler().steps().Next(kGroup, now_).step, ElementsAre(1));
  EXPECT_THAT(scheduler().steps().Next(kGroup, now_).step, ElementsAre(1));
  EXPECT_TRUE(scheduler().steps().Next(kGroup, now_).empty());
  scheduler().steps().OnStepped(kGroup, 1);
  EXPECT_THAT(scheduler().steps().Next(kGroup, now_).step, ElementsAre(1));
}

// Steps of one task take a second.
class StepsTogetherTest : public SchedulerTest {
 protected:
  StepsTogetherTest() : SchedulerTest(2, {.steps_together = absl::Seconds(3.5)}) {}

  // Runs the task until its class is known, and no longer.
  void Learn(TaskId task, int32_t steps) {
    Enqueue(SmallTask(task, "a", steps));
    NextAnswered();
    for (int step = 0; step < 3; ++step) EXPECT_EQ(NextAnswered().steps, 1);
  }
};

TEST_F(StepsTogetherTest, ShortStepsOfABatchAreOnePlan) {
  Learn(1, 8);
  const StepPlan plan = scheduler().steps().Next(kGroup, now_);
  EXPECT_THAT(plan.step, ElementsAre(1));
  EXPECT_EQ(plan.steps, 3);
  EXPECT_THAT(plan.decode, IsEmpty());
  const StepPlan last = scheduler().steps().Next(kGroup, now_);
  EXPECT_EQ(last.steps, 2) << "as many as are left";
  EXPECT_THAT(last.decode, ElementsAre(1));
  EXPECT_TRUE(scheduler().steps().Next(kGroup, now_).empty()) << "the steps of two plans are unanswered";
  for (int step = 0; step < 2; ++step) scheduler().steps().OnStepped(kGroup, 1);
  Enqueue(SmallTask(2, "a", 8));
  EXPECT_TRUE(scheduler().steps().Next(kGroup, now_).empty()) << "one of the first is, still";
  scheduler().steps().OnStepped(kGroup, 1);
  EXPECT_THAT(scheduler().steps().Next(kGroup, now_).start, ElementsAre(2));
  EXPECT_TRUE(scheduler().CheckInvariants().ok());
}

// Allows batches of two, and of four while their step takes no longer than three and a half seconds.
class ShortStepTest : public SchedulerTest {
 protected:
  ShortStepTest() : SchedulerTest(2, {.short_step = absl::Seconds(3.5)}) {}

  // Returns the largest batch that forms from five tasks.
  size_t LargestBatch() {
    size_t largest = 0;
    for (TaskId id = 1; id <= 5; ++id) Enqueue(SmallTask(id, "a", 20));
    for (int plan = 0; plan < 30; ++plan) {
      largest = std::max(largest, NextAnswered().step.size());
      EXPECT_TRUE(scheduler().CheckInvariants().ok());
    }
    return largest;
  }
};

TEST_F(ShortStepTest, ABatchHasMoreRowsWhileItsStepsAreShort) { EXPECT_EQ(LargestBatch(), 3); }

TEST_F(ShortStepTest, NeverMoreThanTwiceAsMany) {
  seconds_per_step_ = 0.1;
  EXPECT_EQ(LargestBatch(), 4);
}

TEST_F(ShortStepTest, NoneWhereStepsAreLong) {
  seconds_per_step_ = 2;
  EXPECT_EQ(LargestBatch(), 2);
}

TEST_F(ShortStepTest, ABatchThatHasBecomeSlowKeepsItsTasks) {
  LargestBatch();
  seconds_per_step_ = 100;
  for (int plan = 0; plan < 3; ++plan) {
    NextAnswered();
    EXPECT_TRUE(scheduler().CheckInvariants().ok());
  }
}

TEST_F(StepsTogetherTest, OneThatWasJustStartedIsInTheNextSteps) {
  Learn(1, 50);
  Enqueue(SmallTask(2, "a", 50));
  EXPECT_THAT(NextAnswered().start, ElementsAre(2));
  const StepPlan plan = scheduler().steps().Next(kGroup, now_);
  EXPECT_THAT(plan.step, ElementsAre(1, 2));
  EXPECT_EQ(plan.steps, 1) << "of three and a half seconds, which two steps of both exceed";
}

TEST_F(StepsTogetherTest, AStepThatTakesLongerIsAPlanByItself) {
  Enqueue(SmallTask(1, "a", 50));
  NextAnswered();
  for (int step = 0; step < 8; ++step) {
    EXPECT_EQ(scheduler().steps().Next(kGroup, now_).steps, 1);
    scheduler().steps().OnStepped(kGroup, 2);
  }
}

TEST_F(SchedulerTest, StepsACancelledTaskNoMoreAndEndsIt) {
  Enqueue(SmallTask(1, "a", 50));
  NextAnswered();
  NextAnswered();
  EXPECT_FALSE(scheduler().Cancel(1));
  const StepPlan plan = scheduler().steps().Next(kGroup, now_);
  EXPECT_THAT(plan.end, ElementsAre(1));
  EXPECT_THAT(plan.step, IsEmpty());
  EXPECT_TRUE(scheduler().steps().Next(kGroup, now_).empty());
}

TEST_F(SchedulerTest, EndsACancelledTaskAlsoWhenTheWindowIsFull) {
  Enqueue(SmallTask(1, "a", 50));
  NextAnswered();
  scheduler().steps().Next(kGroup, now_);
  scheduler().steps().Next(kGroup, now_);
  scheduler().Cancel(1);
  EXPECT_THAT(scheduler().steps().Next(kGroup, now_).end, ElementsAre(1));
}

TEST_F(SchedulerTest, ForgetsACancelledWaitingTask) {
  Enqueue(SmallTask(1, "a", 5));
  EXPECT_TRUE(scheduler().Cancel(1));
  EXPECT_TRUE(scheduler().steps().Next(kGroup, now_).empty());
  EXPECT_EQ(scheduler().tasks().waiting(), 0);
}

TEST_F(SchedulerTest, LetsTasksOfOneClassJoinAndLeaveWhateverTheirSteps) {
  Enqueue(SmallTask(1, "a", 4));
  NextAnswered();
  NextAnswered();
  Enqueue(SmallTask(2, "a", 9));
  const StepPlan joining = NextAnswered();
  EXPECT_THAT(joining.start, ElementsAre(2));
  EXPECT_THAT(joining.step, IsEmpty()) << "the next step is of both";
  for (int step = 0; step < 3; ++step) EXPECT_THAT(NextAnswered().step, ElementsAre(1, 2));
  EXPECT_THAT(NextAnswered().step, ElementsAre(2));
}

TEST_F(SchedulerTest, PutsTwoClassesIntoNoBatch) {
  Enqueue(SmallTask(1, "a", 4, 8));
  Enqueue(SmallTask(2, "a", 4, 16));
  NextAnswered();
  for (int i = 0; i < 4; ++i) EXPECT_THAT(NextAnswered().step, ElementsAre(1));
  EXPECT_THAT(NextAnswered().start, ElementsAre(2));
}

TEST_F(SchedulerTest, TakesNoMoreRowsThanTheGroupHas) {
  for (TaskId id = 1; id <= 5; ++id) Enqueue(SmallTask(id, "a", 3));
  EXPECT_THAT(NextAnswered().start, ElementsAre(1, 2));
  SchedulerTask guided = SmallTask(9, "a", 3);
  guided.shape.rows = 2;
  RequestScheduler one({});
  SetUnitCost(one, "m");
  one.groups().Add(Group(1));
  one.groups().OnReady(kGroup);
  ASSERT_TRUE(one.Enqueue(guided, now_).ok());
  EXPECT_THAT(one.steps().Next(kGroup, now_).start, ElementsAre(9)) << "one task always runs";
}

TEST_F(SchedulerTest, KeepsTasksApartThatShallShareNoBatch) {
  for (const TaskId task : {1, 2, 3}) Enqueue(SmallTask(task, "a", 3));
  NextAnswered();
  EXPECT_THAT(NextAnswered().step, ElementsAre(1, 2));
  scheduler().steps().KeepApart(kGroup, SmallTask(1, "a", 3).shape);
  EXPECT_TRUE(scheduler().CheckInvariants().ok()) << scheduler().CheckInvariants();
  std::vector<std::vector<TaskId>> steps;
  for (int i = 0; i < 20; ++i) {
    const StepPlan plan = NextAnswered();
    EXPECT_TRUE(scheduler().CheckInvariants().ok()) << scheduler().CheckInvariants();
    if (!plan.step.empty()) steps.push_back(plan.step);
  }
  EXPECT_THAT(steps, ElementsAre(ElementsAre(1), ElementsAre(1), ElementsAre(2), ElementsAre(2), ElementsAre(3),
                                 ElementsAre(3), ElementsAre(3)));
  EXPECT_EQ(scheduler().groups().resident(), 0);

  // Other classes share batches as before, and so does this one after the group's restart.
  for (const TaskId task : {4, 5}) Enqueue(SmallTask(task, "a", 1, 16));
  NextAnswered();
  EXPECT_THAT(NextAnswered().step, ElementsAre(4, 5));
  scheduler().steps().OnGroupDied(kGroup);
  scheduler().groups().OnReady(kGroup);
  for (const TaskId task : {6, 7}) Enqueue(SmallTask(task, "a", 1));
  NextAnswered();
  EXPECT_THAT(NextAnswered().step, ElementsAre(6, 7));
}

TEST_F(SchedulerTest, ServesHigherPriorityOfAKeyFirst) {
  Enqueue(SmallTask(1, "a", 3));
  SchedulerTask urgent = SmallTask(2, "a", 3, 16);
  urgent.priority = 1;
  Enqueue(urgent);
  EXPECT_THAT(scheduler().steps().Next(kGroup, now_).start, ElementsAre(2));
}

TEST_F(SchedulerTest, ServesALowPriorityThatHasWaitedLongEnough) {
  SchedulerTask old = SmallTask(1, "a", 3, 16);
  old.priority = -1;
  Enqueue(old);
  now_ += absl::Seconds(31);  // one level is 30 s
  Enqueue(SmallTask(2, "a", 3));
  EXPECT_THAT(scheduler().steps().Next(kGroup, now_).start, ElementsAre(1));
}

TEST_F(SchedulerTest, ServesTheEarlierDeadlineFirst) {
  Enqueue(SmallTask(1, "a", 3));
  SchedulerTask pressed = SmallTask(2, "a", 3, 16);
  pressed.deadline = now_ + absl::Seconds(20);
  Enqueue(pressed);
  EXPECT_THAT(scheduler().steps().Next(kGroup, now_).start, ElementsAre(2));
}

TEST_F(SchedulerTest, ForgetsWaitingTasksAndEndsRunningOnesAtTheirDeadline) {
  SchedulerTask running = SmallTask(1, "a", 50), waiting = SmallTask(2, "a", 3, 16);
  running.deadline = waiting.deadline = now_ + absl::Seconds(10);
  Enqueue(running);
  NextAnswered();
  Enqueue(waiting);
  now_ += absl::Seconds(20);
  EXPECT_THAT(scheduler().TakeExpired(now_), ElementsAre(2));
  EXPECT_THAT(scheduler().steps().Next(kGroup, now_).end, ElementsAre(1));
  EXPECT_THAT(scheduler().steps().TakeOverdue(), ElementsAre(1));
  EXPECT_THAT(scheduler().steps().TakeOverdue(), IsEmpty());
}

TEST_F(SchedulerTest, RunsATaskAloneThatMustBe) {
  SchedulerTask suspect = SmallTask(1, "a", 3);
  suspect.isolated = true;
  Enqueue(SmallTask(2, "a", 3));
  NextAnswered();
  Enqueue(suspect);
  Enqueue(SmallTask(3, "a", 3));
  // The batch ends first; no task joins it.
  for (int i = 0; i < 3; ++i) {
    const StepPlan plan = NextAnswered();
    EXPECT_THAT(plan.start, IsEmpty());
    EXPECT_THAT(plan.step, ElementsAre(2));
  }
  EXPECT_THAT(NextAnswered().start, ElementsAre(1)) << "before task 3, which was there too";
  for (int i = 0; i < 3; ++i) EXPECT_THAT(NextAnswered().step, ElementsAre(1));
  EXPECT_THAT(NextAnswered().start, ElementsAre(3));
}

TEST_F(SchedulerTest, SuspendsALongTaskForAMuchShorterOneAndResumesIt) {
  Enqueue(SmallTask(1, "a", 100));
  NextAnswered();
  NextAnswered();
  Enqueue(SmallTask(2, "b", 2, 4));  // another class with a quarter of the operations
  StepPlan plan = NextAnswered();
  EXPECT_THAT(plan.start, ElementsAre(2));
  EXPECT_THAT(plan.suspended, ElementsAre(1));
  EXPECT_THAT(plan.step, IsEmpty()) << "the short one has not started yet";
  EXPECT_THAT(NextAnswered().step, ElementsAre(2));
  EXPECT_THAT(NextAnswered().step, ElementsAre(2));
  EXPECT_THAT(NextAnswered().step, ElementsAre(1));
}

TEST_F(SchedulerTest, SuspendsNoTaskForOneThatIsNotMuchShorter) {
  Enqueue(SmallTask(1, "a", 10));
  NextAnswered();
  Enqueue(SmallTask(2, "b", 20, 4));
  for (int i = 0; i < 10; ++i) EXPECT_THAT(NextAnswered().step, ElementsAre(1));
}

TEST_F(SchedulerTest, BoundsHowLongASuspendedTaskIsPreempted) {
  simulation_.Submit(SmallTask(1, "a", 100));  // 100 s alone
  simulation_.RunUntil(simulation_.now() + absl::Seconds(5));
  const absl::Time began = simulation_.outcomes().at(1).started;
  for (TaskId id = 2; id < 400; ++id) simulation_.Submit(SmallTask(id, "b", 8, 4));  // 2 s each
  simulation_.RunUntilIdle();
  // The bound is half of its length plus the steps in flight.
  EXPECT_LT(simulation_.outcomes().at(1).ended - began, absl::Seconds(100 + 50 + 10));
}

TEST_F(SchedulerTest, GivesBackTheTasksOfADeadGroupAndNoOthers) {
  Enqueue(SmallTask(1, "a", 5));
  Enqueue(SmallTask(2, "a", 5));
  Enqueue(SmallTask(3, "a", 5));
  NextAnswered();
  NextAnswered();
  EXPECT_THAT(scheduler().steps().OnGroupDied(kGroup), ElementsAre(1, 2));
  EXPECT_EQ(scheduler().tasks().waiting(), 1);
  EXPECT_TRUE(scheduler().steps().Next(kGroup, now_).empty());
  EXPECT_EQ(scheduler().keys().Of("a").charged, 0);
  EXPECT_TRUE(scheduler().CheckInvariants().ok()) << scheduler().CheckInvariants();
}

TEST_F(SchedulerTest, StartsNothingInADrainingGroup) {
  Enqueue(SmallTask(1, "a", 3));
  NextAnswered();
  Enqueue(SmallTask(2, "a", 3));
  scheduler().groups().Drain(kGroup);
  for (int i = 0; i < 3; ++i) EXPECT_THAT(NextAnswered().step, ElementsAre(1));
  EXPECT_TRUE(NextAnswered().empty());
}

TEST_F(SchedulerTest, IgnoresAnswersAboutWhatItDoesNotKnow) {
  scheduler().steps().OnStarted(kGroup, 77, 1);
  scheduler().steps().OnEnded(kGroup, 77);
  scheduler().steps().OnStepped(kGroup, 1);
  scheduler().steps().OnStepped(99, 1);
  EXPECT_THAT(scheduler().steps().OnGroupDied(99), IsEmpty());
  EXPECT_TRUE(scheduler().steps().Next(99, now_).empty());
  EXPECT_TRUE(scheduler().CheckInvariants().ok());
}

TEST_F(SchedulerTest, RefusesAnIdTwice) {
  Enqueue(SmallTask(1, "a", 3));
  EXPECT_EQ(scheduler().Enqueue(SmallTask(1, "a", 3), now_).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(SchedulerTest, CountsPositionsByTheSharesOfTheKeys) {
  for (TaskId id = 1; id <= 4; ++id) Enqueue(SmallTask(id, "a", 3));
  Enqueue(SmallTask(5, "b", 3));
  EXPECT_EQ(scheduler().admission().QueuePosition(1), 0);
  EXPECT_EQ(scheduler().admission().QueuePosition(5), 1) << "the second key's turn comes second";
  EXPECT_EQ(scheduler().admission().QueuePosition(2), 2);
  EXPECT_EQ(scheduler().admission().QueuePosition(4), 4);
  EXPECT_EQ(scheduler().admission().QueuePosition(99), std::nullopt);
}

TEST_F(SchedulerTest, ExpectsTheWaitThatItsGroupsSpeedSays) {
  Enqueue(SmallTask(1, "a", 10));
  NextAnswered();
  NextAnswered();  // a step that took a second
  Enqueue(SmallTask(2, "a", 10, 16));
  Enqueue(SmallTask(3, "a", 10, 16));
  // Nine steps of a second come before the first of them; a task of 40 s also comes before the second.
  EXPECT_NEAR(absl::ToDoubleSeconds(*scheduler().admission().ExpectedWait(2)), 9, 1e-6);
  EXPECT_NEAR(absl::ToDoubleSeconds(*scheduler().admission().ExpectedWait(3)), 49, 1e-6);
}

}  // namespace
}  // namespace tessera::server
