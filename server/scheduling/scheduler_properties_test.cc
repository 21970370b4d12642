// Tests of properties that every run of the scheduler has, on simulated workers and a simulated clock.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "server/scheduling/request_scheduler.h"
#include "tests/scheduling/scheduler_simulation.h"

namespace tessera::server {
namespace {

constexpr double kStepFlops = 64;  // 8x8 task

GroupDescription Group(GroupId id, int32_t max_rows, int32_t ranks = 1, double memory_bytes = 0) {
  return {.id = id, .model = "m", .ranks = ranks, .max_rows = max_rows, .memory_bytes = memory_bytes};
}

// Returns the operations that two keys got. Both always have tasks waiting: one has many small ones, the other few
// large ones.
std::pair<double, double> Shares(double weight_of_b) {
  SchedulerSimulation simulation({});
  simulation.scheduler().keys().SetWeights({{"b", weight_of_b}});
  simulation.AddGroup(Group(1, 4), kStepFlops * 10);
  for (TaskId id = 1; id <= 2000; ++id) simulation.Submit(SmallTask(id, "a", 5));
  for (TaskId id = 10001; id <= 10300; ++id) simulation.Submit(SmallTask(id, "b", 40, 16));
  simulation.RunUntil(simulation.now() + absl::Seconds(400));
  EXPECT_GT(simulation.scheduler().tasks().waiting(), 100) << "both keys still wait";
  return {simulation.flops_of("a"), simulation.flops_of("b")};
}

TEST(FairShare, GivesEqualKeysThroughputsWithinATwentieth) {
  const auto [a, b] = Shares(1);
  EXPECT_NEAR(a / b, 1, 0.05);
}

TEST(FairShare, FollowsTheWeights) {
  const auto [a, b] = Shares(3);
  EXPECT_NEAR(b / a, 3, 0.3);
}

TEST(FairShare, HoldsBetweenAFloodAndATrickle) {
  SchedulerSimulation simulation({});
  simulation.AddGroup(Group(1, 1), kStepFlops);
  for (TaskId id = 1; id <= 1000; ++id) simulation.Submit(SmallTask(id, "flood", 2));
  simulation.RunUntil(simulation.now() + absl::Seconds(101));
  simulation.Submit(SmallTask(5000, "trickle", 2));
  simulation.RunUntilIdle();
  const TaskOutcome& trickle = simulation.outcomes().at(5000);
  EXPECT_LE(trickle.started - trickle.enqueued, absl::Seconds(4)) << "at most the running task and one turn";
}

TEST(FairShare, GivesNoCreditForIdleness) {
  SchedulerSimulation simulation({});
  simulation.AddGroup(Group(1, 1), kStepFlops);
  simulation.Submit(SmallTask(9000, "sleeper", 1));
  for (TaskId id = 1; id <= 500; ++id) simulation.Submit(SmallTask(id, "worker", 2));
  simulation.RunUntil(simulation.now() + absl::Seconds(400));
  const double before = simulation.flops_of("worker");
  for (TaskId id = 1001; id <= 1200; ++id) simulation.Submit(SmallTask(id, "sleeper", 2));
  simulation.RunUntil(simulation.now() + absl::Seconds(100));
  // It gets half of the hundred seconds; it would get none if the other key had credit for its idle time.
  EXPECT_NEAR(simulation.flops_of("worker") - before, 50 * kStepFlops, 5 * kStepFlops);
}

TEST(Starvation, ReachesNoTaskHoweverManyUrgentOnesCome) {
  SchedulerSimulation simulation({});
  simulation.AddGroup(Group(1, 1), kStepFlops);
  SchedulerTask humble = SmallTask(1, "a", 2, 16);
  humble.priority = -10;
  simulation.Submit(humble);
  // Submits an hour of urgent work, as much as the group can do, and twenty tasks more.
  for (TaskId id = 2; id < 1800; ++id) {
    SchedulerTask urgent = SmallTask(id, "a", 2);
    urgent.priority = 10;
    simulation.Submit(urgent);
    if (id > 20) simulation.RunUntil(simulation.now() + absl::Seconds(2));
  }
  const TaskOutcome& outcome = simulation.outcomes().at(1);
  ASSERT_TRUE(outcome.done);
  // The bound is twenty levels of thirty seconds plus the backlog of that time.
  EXPECT_LT(outcome.started - outcome.enqueued, absl::Seconds(20 * 30 + 60));
  EXPECT_GT(outcome.started - outcome.enqueued, absl::Seconds(20 * 30 - 60)) << "the priority counts";
}

TEST(Starvation, ReachesNoClassAfterAnother) {
  SchedulerSimulation simulation({});
  simulation.AddGroup(Group(1, 4), kStepFlops * 4);
  for (TaskId id = 1; id <= 4; ++id) simulation.Submit(SmallTask(id, "a", 10));
  simulation.RunUntil(simulation.now() + absl::Seconds(1));
  simulation.Submit(SmallTask(5000, "b", 20, 16));
  // The first class alone would keep the batch full for ever.
  for (TaskId id = 10; id < 600; ++id) {
    simulation.Submit(SmallTask(id, "a", 10));
    simulation.RunUntil(simulation.now() + absl::Seconds(2.4));
  }
  const TaskOutcome& outcome = simulation.outcomes().at(5000);
  ASSERT_NE(outcome.started, absl::Time());
  EXPECT_LT(outcome.started - outcome.enqueued, absl::Seconds(30)) << "the batch ends and the other class starts";
}

TEST(WorkConservation, LeavesNoGroupIdleWhileTasksWait) {
  std::mt19937_64 random(3);
  SchedulerSimulation simulation({});
  simulation.AddGroup(Group(1, 4), kStepFlops * 4);
  simulation.AddGroup(Group(2, 2), kStepFlops * 2);
  for (TaskId id = 1; id <= 300; ++id) {
    simulation.Submit(SmallTask(id, std::string(1, static_cast<char>('a' + random() % 4)),
                                1 + static_cast<int32_t>(random() % 30), random() % 3 == 0 ? 16 : 8));
  }
  simulation.RunUntilIdle();
  EXPECT_EQ(simulation.scheduler().tasks().waiting(), 0);
  EXPECT_EQ(simulation.idle_while_waiting(1), absl::ZeroDuration());
  EXPECT_EQ(simulation.idle_while_waiting(2), absl::ZeroDuration());
}

// Negative control: a group that may not start tasks is reported as idle.
TEST(WorkConservation, IsSeenToFailInADrainedGroup) {
  SchedulerSimulation simulation({});
  simulation.AddGroup(Group(1, 1), kStepFlops);
  simulation.AddGroup(Group(2, 1), kStepFlops);
  simulation.scheduler().groups().Drain(2);
  for (TaskId id = 1; id <= 10; ++id) simulation.Submit(SmallTask(id, "a", 5));
  simulation.RunUntilIdle();
  EXPECT_GT(simulation.idle_while_waiting(2), absl::Seconds(10));
}

std::vector<std::string> RandomRun(uint64_t seed) {
  std::mt19937_64 random(seed);
  SchedulerSimulation simulation({});
  simulation.AddGroup(Group(1, 3), kStepFlops * 2);
  simulation.AddGroup(Group(2, 2), kStepFlops);
  for (TaskId id = 1; id <= 200; ++id) {
    SchedulerTask task = SmallTask(id, std::string(1, static_cast<char>('a' + random() % 3)),
                                   1 + static_cast<int32_t>(random() % 20), random() % 4 == 0 ? 16 : 8);
    task.priority = static_cast<int32_t>(random() % 5);
    simulation.Submit(task);
    if (random() % 5 == 0) simulation.Cancel(1 + random() % id);
    simulation.RunUntil(simulation.now() + absl::Milliseconds(static_cast<int64_t>(random() % 8000)));
  }
  simulation.RunUntilIdle();
  return simulation.log();
}

TEST(Determinism, GivesTheSamePlansForTheSameCalls) {
  EXPECT_EQ(RandomRun(11), RandomRun(11));
  EXPECT_NE(RandomRun(11), RandomRun(12)) << "the comparison sees a difference";
}

TEST(Cancel, TakesEffectWithinTwoSteps) {
  std::mt19937_64 random(5);
  SchedulerSimulation simulation({});
  simulation.AddGroup(Group(1, 3), kStepFlops);
  for (TaskId id = 1; id <= 60; ++id) simulation.Submit(SmallTask(id, "a", 30));
  for (TaskId id = 1; id <= 60; id += 2) {
    simulation.RunUntil(simulation.now() + absl::Seconds(7));
    simulation.Cancel(id);
  }
  simulation.RunUntilIdle();
  for (TaskId id = 1; id <= 60; id += 2) {
    // At most two steps were in flight at the cancel; none is issued after it.
    EXPECT_EQ(simulation.steps_after_cancel(id), 0) << id;
  }
}

// Negative control for the test above.
TEST(Cancel, IsSeenToFailWhenItDoesNotReachTheScheduler) {
  SchedulerSimulation simulation({});
  simulation.AddGroup(Group(1, 3), kStepFlops);
  simulation.Submit(SmallTask(1, "a", 30));
  simulation.RunUntil(simulation.now() + absl::Seconds(7));
  simulation.ForgetToCancel(1);
  simulation.RunUntilIdle();
  EXPECT_GT(simulation.steps_after_cancel(1), kMaxStepsInFlight);
}

TEST(LargeTasks, GoToTheLargeGroup) {
  SchedulerOptions options;
  options.large_step = absl::Seconds(2);
  SchedulerSimulation simulation(options);
  simulation.AddGroup(Group(1, 1, 1), kStepFlops);
  simulation.AddGroup(Group(2, 1, 8), kStepFlops * 8);
  // The scheduler learns the groups' speeds first.
  for (TaskId id = 1; id <= 20; ++id) simulation.Submit(SmallTask(id, "a", 5));
  simulation.RunUntilIdle();
  for (TaskId id = 101; id <= 103; ++id) simulation.Submit(SmallTask(id, "a", 10, 32));  // 16 s a step on group 1
  for (TaskId id = 201; id <= 210; ++id) simulation.Submit(SmallTask(id, "a", 5));
  simulation.RunUntilIdle();
  for (TaskId id = 101; id <= 103; ++id) EXPECT_EQ(simulation.outcomes().at(id).group, 2) << id;
  EXPECT_EQ(simulation.outcomes().at(201).group, 1);
}

TEST(LargeTasks, GoToASmallGroupThatWouldBeSooner) {
  SchedulerOptions options;
  options.large_step = absl::Seconds(2);
  SchedulerSimulation simulation(options);
  simulation.AddGroup(Group(1, 1, 1), kStepFlops);
  simulation.AddGroup(Group(2, 1, 2), kStepFlops * 2);
  for (TaskId id = 1; id <= 20; ++id) simulation.Submit(SmallTask(id, "a", 5));
  simulation.RunUntilIdle();
  for (TaskId id = 101; id <= 112; ++id) simulation.Submit(SmallTask(id, "a", 10, 32));
  simulation.RunUntilIdle();
  int on_small = 0;
  for (TaskId id = 101; id <= 112; ++id) on_small += simulation.outcomes().at(id).group == 1 ? 1 : 0;
  EXPECT_GE(on_small, 2) << "the large group's queue is longer than the small group's time";
  EXPECT_LE(on_small, 5);
}

TEST(LargeTasks, NeverGoWhereTheirMemoryDoesNotFit) {
  SchedulerSimulation simulation({});
  simulation.AddGroup(Group(1, 8, 1, 100), kStepFlops);  // an 8x8 task needs 64 bytes, a 16x16 one 256
  simulation.AddGroup(Group(2, 8, 2, 600), kStepFlops);
  for (TaskId id = 1; id <= 20; ++id) simulation.Submit(SmallTask(id, "a", 5, id % 2 == 0 ? 16 : 8));
  simulation.RunUntilIdle();
  for (const auto& [id, outcome] : simulation.outcomes()) {
    EXPECT_TRUE(outcome.done);
    EXPECT_TRUE(id % 2 == 1 || outcome.group == 2) << id;
  }
}

TEST(Crash, RunsEveryBatchMateAloneFirstAndLosesNone) {
  SchedulerSimulation simulation({});
  simulation.AddGroup(Group(1, 3), kStepFlops);
  for (TaskId id = 1; id <= 6; ++id) simulation.Submit(SmallTask(id, "a", 10));
  simulation.RunUntil(simulation.now() + absl::Seconds(5));
  const std::vector<TaskId> dead = simulation.KillGroup(1);
  ASSERT_EQ(dead.size(), 3u);
  for (TaskId id : dead) {
    SchedulerTask again = SmallTask(id, "a", 10);
    again.isolated = true;
    simulation.Submit(again);
  }
  simulation.ReviveGroup(1);
  simulation.RunUntilIdle();
  for (const auto& [id, outcome] : simulation.outcomes()) EXPECT_TRUE(outcome.done) << id;
  // The tasks that were in the crash started before those that had only waited.
  for (TaskId id : dead) EXPECT_LT(simulation.outcomes().at(id).started, simulation.outcomes().at(6).started);
}

// Makes random calls in random order and checks the invariants after each.
TEST(RandomOperations, KeepTheInvariants) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed);
    SchedulerOptions options;
    options.max_resident = 6;
    options.max_waiting = 60;
    RequestScheduler scheduler(options);
    SetUnitCost(scheduler, "m");
    SetUnitCost(scheduler, "n");
    absl::Time now = absl::FromUnixSeconds(1'800'000'000);
    for (GroupId id = 1; id <= 3; ++id) {
      GroupDescription group = Group(id, 1 + id, id, 1000);
      if (id == 3) group.model = "n";
      scheduler.groups().Add(group);
    }
    struct InFlight {
      std::vector<TaskId> starting, ending;
      int steps = 0;
    };
    std::map<GroupId, InFlight> workers;
    std::map<TaskId, int> steps, runs;  // made, and those that the worker reports
    std::map<TaskId, SchedulerTask> specs;
    TaskId next = 1;
    for (int call = 0; call < 600; ++call) {
      now += absl::Milliseconds(static_cast<int64_t>(random() % 3000));
      const GroupId group = 1 + static_cast<GroupId>(random() % 3);
      InFlight& worker = workers[group];
      switch (random() % 12) {
        case 0:
        case 1:
        case 2: {
          SchedulerTask task = SmallTask(next, std::string(1, static_cast<char>('a' + random() % 3)),
                                         1 + static_cast<int32_t>(random() % 12), random() % 3 == 0 ? 16 : 8);
          if (random() % 4 == 0) task.shape.model = "n";
          task.shape.rows = 1 + static_cast<int32_t>(random() % 2);
          task.priority = static_cast<int32_t>(random() % 3);
          task.isolated = random() % 10 == 0;
          task.enqueued = now;
          if (random() % 4 == 0) task.deadline = now + absl::Seconds(static_cast<int64_t>(random() % 90));
          const Admission admission =
              scheduler.admission().Admit(task.key, task.shape, task.steps, 1, {.max_waiting = 40});
          if (!admission.status.ok()) break;
          if (random() % 10 == 0) {
            scheduler.admission().Release(admission.ticket);
            break;
          }
          const absl::Status enqueued = scheduler.Enqueue(task, now, admission.ticket);
          ASSERT_TRUE(enqueued.ok()) << enqueued;
          specs[next++] = task;
          break;
        }
        case 3:
          if (next > 1) scheduler.Cancel(1 + random() % next);
          break;
        case 4:
          scheduler.TakeExpired(now);
          scheduler.steps().TakeOverdue();
          break;
        case 5:
          if (random() % 6 == 0) {
            for (TaskId task : scheduler.steps().OnGroupDied(group)) {
              steps[task] = 0;
              if (random() % 2 == 0) {
                ASSERT_TRUE(scheduler.Enqueue(specs.at(task), now).ok());
              }
            }
            worker = {};
          }
          break;
        case 6:
          scheduler.groups().OnReady(group);
          break;
        case 7:
          if (worker.steps > 0) {
            --worker.steps;
            scheduler.steps().OnStepped(group, 0.5);
          }
          break;
        case 8:
          for (TaskId task : worker.starting) {
            runs[task] = 1 + static_cast<int32_t>(random() % (2 * specs.at(task).steps));
            scheduler.steps().OnStarted(group, task, runs[task]);
          }
          worker.starting.clear();
          break;
        case 9:
          for (TaskId task : worker.ending) scheduler.steps().OnEnded(group, task);
          worker.ending.clear();
          break;
        default: {
          const StepPlan plan = scheduler.steps().Next(group, now);
          worker.starting.insert(worker.starting.end(), plan.start.begin(), plan.start.end());
          worker.ending.insert(worker.ending.end(), plan.end.begin(), plan.end.end());
          worker.ending.insert(worker.ending.end(), plan.decode.begin(), plan.decode.end());
          if (!plan.step.empty()) ++worker.steps;
          ASSERT_LE(worker.steps, kMaxStepsInFlight);
          for (TaskId task : plan.step) ASSERT_LE(++steps[task], runs.at(task));
          break;
        }
      }
      const absl::Status kept = scheduler.CheckInvariants();
      ASSERT_TRUE(kept.ok()) << "seed " << seed << ", call " << call << ": " << kept;
    }
  }
}

}  // namespace
}  // namespace tessera::server
