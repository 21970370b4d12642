#include "server/http/body_budget.h"

#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class BodyBudgetTest : public ::testing::Test {
 protected:
  std::unique_ptr<BodyBudget::Claim> Ask(size_t bytes, int number = 0) {
    return budget_->Ask(bytes, [this, number] { order_.push_back(number); });
  }

  const std::shared_ptr<BodyBudget> budget_ = std::make_shared<BodyBudget>(100);
  std::vector<int> order_;
};

TEST_F(BodyBudgetTest, RoomThatIsThereIsGivenAtOnce) {
  const auto first = Ask(60), second = Ask(40);
  EXPECT_TRUE(first->has_room());
  EXPECT_TRUE(second->has_room());
  EXPECT_THAT(order_, IsEmpty());
  EXPECT_EQ(budget_->use().held, 100u);
}

TEST_F(BodyBudgetTest, RoomIsGivenInTheOrderOfTheClaims) {
  auto first = Ask(60, 1), second = Ask(50, 2), third = Ask(10, 3), fourth = Ask(90, 4);
  EXPECT_FALSE(second->has_room());
  EXPECT_FALSE(third->has_room()) << "it fits, but came later";
  EXPECT_EQ(budget_->use().waiting, 3u);
  first.reset();
  EXPECT_THAT(order_, ElementsAre(2, 3));
  second.reset();
  EXPECT_THAT(order_, ElementsAre(2, 3, 4));
  third.reset();
  EXPECT_TRUE(fourth->has_room());
  fourth.reset();
  const BodyBudgetUse use = budget_->use();
  EXPECT_EQ(use.held, 0u);
  EXPECT_EQ(use.most_held, 100u);
  EXPECT_EQ(use.waiting, 0u);
}

TEST_F(BodyBudgetTest, AClaimThatIsGivenUpHoldsUpNoOther) {
  auto first = Ask(60, 1), second = Ask(90, 2);
  const auto third = Ask(40, 3);
  second.reset();
  EXPECT_THAT(order_, ElementsAre(3));
  EXPECT_TRUE(third->has_room());
}

TEST_F(BodyBudgetTest, AClaimThatShrinksMakesRoom) {
  auto first = Ask(100, 1);
  const auto second = Ask(70, 2);
  first->Shrink(31);
  EXPECT_THAT(order_, IsEmpty());
  first->Shrink(30);
  EXPECT_THAT(order_, ElementsAre(2));
  first->Shrink(50);
  EXPECT_EQ(budget_->use().held, 100u) << "it does not grow again";
  first.reset();
  EXPECT_EQ(budget_->use().held, 70u);
}

TEST_F(BodyBudgetTest, AClaimMayOutliveTheOwnerOfTheBudget) {
  auto budget = std::make_shared<BodyBudget>(10);
  const auto claim = budget->Ask(10, [] {});
  const std::weak_ptr<BodyBudget> watched = budget;
  budget.reset();
  EXPECT_FALSE(watched.expired());
  EXPECT_TRUE(claim->has_room());
}

TEST_F(BodyBudgetTest, ManyThreadsNeverHoldMoreThanThereIs) {
  std::vector<std::thread> threads;
  std::atomic<int> given = 0;
  for (size_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (size_t j = 0; j < 500; ++j) {
        const auto has_room = std::make_shared<absl::Notification>();
        const auto claim = budget_->Ask(1 + (i * 13 + j * 7) % 100, [has_room] { has_room->Notify(); });
        if (!claim->has_room()) has_room->WaitForNotification();
        ++given;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(given, 4000);
  const BodyBudgetUse use = budget_->use();
  EXPECT_EQ(use.held, 0u);
  EXPECT_LE(use.most_held, 100u);
}

}  // namespace
}  // namespace tessera::server
