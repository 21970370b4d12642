// Tests of the least time a job takes, and of groups whose tasks are all to end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/scheduling/learned_speed.h"
#include "tests/scheduling/scheduler_simulation.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr GroupId kGroup = 1;
const ShapeClass kSmall = {.model = "m", .height = 8, .width = 8};    // a step: 64 operations
const ShapeClass kLarge = {.model = "m", .height = 64, .width = 64};  // a step: 4096

TEST(LeastSecondsPerFlopTest, IsWhatNothingSurpassesUntilAStepWasSeen) {
  EXPECT_EQ(LearnedSpeed(1).LeastSecondsPerFlop(kSmall, 0.001), 0.001);
}

TEST(LeastSecondsPerFlopTest, IsTheFastestStepOfAClassThatWasSeenOftenEnough) {
  LearnedSpeed speed(1);
  speed.Observe(kSmall, 1, 100);  // includes one-time work
  speed.Observe(kSmall, 1, 20);
  EXPECT_LE(speed.LeastSecondsPerFlop(kSmall, 0.001), 1);
  speed.Observe(kSmall, 1, 30);
  EXPECT_EQ(speed.LeastSecondsPerFlop(kSmall, 0.001), 20);
  speed.Observe(kSmall, 1, 5000);  // the machine was suspended
  EXPECT_EQ(speed.LeastSecondsPerFlop(kSmall, 0.001), 20);
}

TEST(LeastSecondsPerFlopTest, TrustsALargeImageToUseTheDeviceBetter) {
  LearnedSpeed speed(1);
  for (int step = 0; step < 3; ++step) speed.Observe(kSmall, 1, 0.8);
  EXPECT_EQ(speed.LeastSecondsPerFlop(kLarge, 0.001), 0.1);
}

TEST(LeastSecondsPerFlopTest, OfAnUnseenClassIsNeverSlowerThanWhatIsAssumedAtTheStart) {
  LearnedSpeed speed(1);
  for (int step = 0; step < 3; ++step) speed.Observe(kSmall, 1, 1000);
  EXPECT_EQ(speed.LeastSecondsPerFlop(kLarge, 0.001), 1);
  for (int step = 0; step < 3; ++step) speed.Observe(kLarge, 1, 7);
  EXPECT_EQ(speed.LeastSecondsPerFlop(kLarge, 0.001), 7);
}

class JobTimeTest : public testing::Test {
 protected:
  JobTimeTest() {
    SetUnitCost(scheduler_, "m");
    scheduler_.groups().Add({.id = kGroup, .model = "m", .max_rows = 2, .most_flops_per_second = 640});
    scheduler_.groups().OnReady(kGroup);
  }

  SchedulerTask Task(TaskId id) {
    SchedulerTask task = SmallTask(id, "key", 100);
    task.enqueued = now_;
    return task;
  }

  // Starts two tasks, each with its next two steps in flight.
  void RunTwo(const SchedulerTask& first, const SchedulerTask& second) {
    for (const SchedulerTask& task : {first, second}) ASSERT_TRUE(scheduler_.Enqueue(task, now_).ok());
    for (const TaskId task : scheduler_.steps().Next(kGroup, now_).start) {
      scheduler_.steps().OnStarted(kGroup, task, scheduler_.tasks().Find(task)->spec.steps);
    }
    // A task with a deadline goes first.
    ASSERT_THAT(scheduler_.steps().Next(kGroup, now_).step, UnorderedElementsAre(1, 2));
    ASSERT_THAT(scheduler_.steps().Next(kGroup, now_).step, UnorderedElementsAre(1, 2));
  }

  void TearDown() override { EXPECT_TRUE(scheduler_.CheckInvariants().ok()) << scheduler_.CheckInvariants(); }

  RequestScheduler scheduler_{{.initial_flops_per_second = 1}};
  absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);
};

TEST_F(JobTimeTest, IsThatOfAllStepsOfAllImages) {
  EXPECT_EQ(scheduler_.capacity().LeastJobTime(kSmall, 10, 3), absl::Seconds(3));
  EXPECT_EQ(scheduler_.capacity().LeastJobTime(kLarge, 10, 3), absl::Seconds(192));
}

TEST_F(JobTimeTest, IsThatOfTheFastestGroupOfTheModelThatHasRoom) {
  scheduler_.groups().Add({.id = 2, .model = "m", .most_flops_per_second = 6400});
  scheduler_.groups().Add({.id = 3, .model = "other", .most_flops_per_second = 1e9});
  EXPECT_EQ(scheduler_.capacity().LeastJobTime(kSmall, 10, 3), absl::Milliseconds(300));
  EXPECT_EQ(scheduler_.capacity().LeastJobTime({.model = "nobody's", .height = 8, .width = 8}, 10, 3),
            absl::ZeroDuration());
}

TEST_F(JobTimeTest, IsLearned) {
  ASSERT_NO_FATAL_FAILURE(RunTwo(Task(1), Task(2)));
  for (int step = 0; step < 3; ++step) {
    scheduler_.steps().OnStepped(kGroup, 256);  // for 128 operations
    scheduler_.steps().Next(kGroup, now_);
  }
  EXPECT_EQ(scheduler_.capacity().LeastJobTime(kSmall, 10, 3), absl::Seconds(3840));
}

TEST_F(JobTimeTest, AGroupIsAbandonedOnlyOnceAllThatItHasIsToEnd) {
  EXPECT_FALSE(scheduler_.steps().IsAbandoned(kGroup)) << "it rests";
  SchedulerTask late = Task(2);
  late.deadline = now_ + absl::Seconds(5);
  ASSERT_NO_FATAL_FAILURE(RunTwo(Task(1), late));
  EXPECT_FALSE(scheduler_.steps().IsAbandoned(kGroup));
  EXPECT_FALSE(scheduler_.Cancel(1));
  EXPECT_FALSE(scheduler_.steps().IsAbandoned(kGroup)) << "the other one is wanted";
  scheduler_.steps().EndOverdue(now_ + absl::Seconds(4));
  EXPECT_THAT(scheduler_.steps().TakeOverdue(), IsEmpty());
  EXPECT_FALSE(scheduler_.steps().IsAbandoned(kGroup));
  scheduler_.steps().EndOverdue(now_ + absl::Seconds(5));
  EXPECT_THAT(scheduler_.steps().TakeOverdue(), ElementsAre(2));
  EXPECT_TRUE(scheduler_.steps().IsAbandoned(kGroup));
  EXPECT_EQ(scheduler_.capacity().LeastTimeInFlight(kGroup), absl::Seconds(256.0 / 640)) << "two steps of two images";
}

TEST_F(JobTimeTest, ARetiredGroupGetsNothingMoreUntilItIsReadyAgain) {
  ASSERT_NO_FATAL_FAILURE(RunTwo(Task(1), Task(2)));
  scheduler_.Cancel(1);
  scheduler_.Cancel(2);
  ASSERT_TRUE(scheduler_.Enqueue(Task(3), now_).ok());
  scheduler_.steps().Retire(kGroup);
  EXPECT_FALSE(scheduler_.steps().IsAbandoned(kGroup)) << "it is being ended already";
  EXPECT_TRUE(scheduler_.steps().Next(kGroup, now_).empty());
  scheduler_.steps().OnStepped(kGroup, 1);
  EXPECT_TRUE(scheduler_.steps().Next(kGroup, now_).empty());
  EXPECT_THAT(scheduler_.steps().OnGroupDied(kGroup), ElementsAre(1, 2));
  EXPECT_EQ(scheduler_.capacity().LeastTimeInFlight(kGroup), absl::ZeroDuration());
  scheduler_.groups().OnReady(kGroup);
  EXPECT_THAT(scheduler_.steps().Next(kGroup, now_).start, ElementsAre(3));
}

}  // namespace
}  // namespace tessera::server
