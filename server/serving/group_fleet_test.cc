// The fleet without runners: what the scheduler knows of its groups.
#include "server/serving/group_fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include "base/machine/machine_processors.h"
#include "server/scheduling/shape_class.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Lock = ServiceMonitor::Lock;

constexpr double kBudget = 1000;  // bytes of the machine's memory; the models have no weights

class GroupFleetTest : public ::testing::Test {
 protected:
  GroupFleetTest() {
    options_.host_memory = [] { return HostMemory{.total = kBudget, .available = kBudget}; };
    options_.log = [](const std::string&) {};
    fleet_ = std::make_unique<GroupFleet>(monitor_, models_, options_, "data", "owner");
    const Lock lock = monitor_.Acquire();
    models_.Put({.id = "m"});
    monitor_.scheduler(lock).capacity().SetModel("m", {.flops = {.image = 1}, .values_per_token = 0.25});
  }

  void Install(const Lock& lock, int64_t count) {
    fleet_->Install(lock, {.options = {.name = "m", .count = count}}, /*number=*/fleet_->size(lock), count);
  }
  // Whether an image of so many tokens could ever be made.
  absl::StatusCode Fits(const Lock& lock, int32_t tokens) {
    return monitor_.scheduler(lock).capacity().CheckFits({.model = "m", .height = tokens, .width = 1}).code();
  }

  ServiceMonitor monitor_{{}};
  ServedModels models_;
  DurableServiceOptions options_;
  std::unique_ptr<GroupFleet> fleet_;
};

TEST_F(GroupFleetTest, AnImageMayCountOnAllMemoryThatTheWeightsLeave) {
  const Lock lock = monitor_.Acquire();
  EXPECT_EQ(Fits(lock, 1), absl::StatusCode::kFailedPrecondition) << "there is no group";
  Install(lock, 1);
  EXPECT_EQ(Fits(lock, 1000), absl::StatusCode::kOk);
  EXPECT_EQ(Fits(lock, 1001), absl::StatusCode::kInvalidArgument);
}

// They may make one at the same time, and keep what the last one took.
TEST_F(GroupFleetTest, GroupsOfTheHostShareItsMemory) {
  const Lock lock = monitor_.Acquire();
  Install(lock, 2);
  EXPECT_EQ(Fits(lock, 500), absl::StatusCode::kOk);
  EXPECT_EQ(Fits(lock, 501), absl::StatusCode::kInvalidArgument);
  std::vector<bool> kept = {true, false};
  fleet_->DrainOthers(lock, kept);
  Install(lock, 1);
  EXPECT_EQ(Fits(lock, 500), absl::StatusCode::kOk) << "the group that ends is not counted";
}

TEST_F(GroupFleetTest, ADecoderOfTheHostHasTemporaries) {
  const Lock lock = monitor_.Acquire();
  monitor_.scheduler(lock).capacity().SetModel("m", {.decode_values_per_pixel = 0.25});
  Install(lock, 1);
  EXPECT_EQ(Fits(lock, 500), absl::StatusCode::kOk);
  EXPECT_EQ(Fits(lock, 501), absl::StatusCode::kInvalidArgument);
}

TEST_F(GroupFleetTest, ReplicasHaveNamesByTheirNumbers) {
  const Lock lock = monitor_.Acquire();
  Install(lock, 2);
  Install(lock, 1);
  EXPECT_THAT(
      std::vector<std::string>({fleet_->Find(lock, 1).name, fleet_->Find(lock, 2).name, fleet_->Find(lock, 3).name}),
      ElementsAre("m-0", "m-1", "m-2"));
}

TEST_F(GroupFleetTest, ReplicasShareTheProcessorsThatTheProcessMayUse) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  const Lock lock = monitor_.Acquire();
  Install(lock, 1);
  EXPECT_EQ(fleet_->Find(lock, 1).load.placement.threads, base::ReadMachineProcessors().available());
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  Install(lock, 2);
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
  EXPECT_EQ(fleet_->Find(lock, 2).load.placement.threads, 1);
}

// What runs when they make nothing is not for an image.
TEST_F(GroupFleetTest, AnImageCountsOnWhatTheProcessesLeaveOfTheLimit) {
  double in_use = 0;
  options_.host_memory = [&] {
    return HostMemory{.total = kBudget, .available = kBudget, .in_use = in_use, .is_limit = true};
  };
  fleet_ = std::make_unique<GroupFleet>(monitor_, models_, options_, "data", "owner");
  const Lock lock = monitor_.Acquire();
  Install(lock, 1);
  EXPECT_EQ(Fits(lock, kBudget), absl::StatusCode::kOk);
  in_use = kBudget - 100;
  fleet_->OnReady(lock, 1, std::nullopt);
  EXPECT_EQ(Fits(lock, 100), absl::StatusCode::kOk);
  EXPECT_EQ(Fits(lock, 101), absl::StatusCode::kInvalidArgument);
  const absl::Status refused = monitor_.scheduler(lock).capacity().CheckFits({.model = "m", .height = 101, .width = 1});
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("the memory limit of the server's control group (container) is"));
}

TEST_F(GroupFleetTest, WhereNothingIsLeftNoImageIsAccepted) {
  options_.host_memory = [] { return HostMemory{.total = kBudget, .available = 0, .in_use = 2 * kBudget}; };
  fleet_ = std::make_unique<GroupFleet>(monitor_, models_, options_, "data", "owner");
  const Lock lock = monitor_.Acquire();
  Install(lock, 1);
  fleet_->OnReady(lock, 1, std::nullopt);
  EXPECT_EQ(Fits(lock, 2), absl::StatusCode::kInvalidArgument);
}

TEST_F(GroupFleetTest, AGroupThatIsRefusedTakesNothingUntilItIsReady) {
  const Lock lock = monitor_.Acquire();
  Install(lock, 1);
  fleet_->OnRefused(lock, 1);
  EXPECT_EQ(Fits(lock, 1), absl::StatusCode::kFailedPrecondition);
  fleet_->OnReady(lock, 1, std::nullopt);
  EXPECT_EQ(Fits(lock, 1), absl::StatusCode::kOk);
}

TEST_F(GroupFleetTest, GroupsThatAreNotWantedEndWhenNothingRunsInThem) {
  {
    const Lock lock = monitor_.Acquire();
    Install(lock, 2);
    std::vector<bool> kept(2, false);
    EXPECT_EQ(fleet_->Keep(lock, {.name = "m", .count = 1}, kept), 0);
    EXPECT_THAT(kept, ElementsAre(true, false));
    EXPECT_EQ(fleet_->Keep(lock, {.name = "other", .count = 3}, kept), 3);
    fleet_->DrainOthers(lock, kept);
    EXPECT_EQ(fleet_->serving(lock), 1);
  }
  EXPECT_TRUE(fleet_->EndDrained());
  EXPECT_FALSE(fleet_->EndDrained()) << "once";
  const Lock lock = monitor_.Acquire();
  EXPECT_EQ(Fits(lock, 1000), absl::StatusCode::kOk) << "by the other one";
}

}  // namespace
}  // namespace tessera::server
