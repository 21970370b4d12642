#include "client/cli/batch/batch_plan.h"

#include <gtest/gtest.h>

#include <sstream>

namespace tessera::client {
namespace {

BatchPlan PlanOf(const std::string& text, Shard shard = {}) {
  std::istringstream input(text);
  BatchReader reader(input, BatchFormat::kJsonl);
  BatchPlan plan(shard);
  while (true) {
    const auto item = reader.Next();
    if (!item.ok() || !item->has_value()) return plan;
    plan.Add(**item, (*item)->request.status());
  }
}

constexpr char kItems[] = R"({"prompt": "a"}
{"prompt": "b", "size": "200x100", "n": 3}
no JSON
{"prompt": "c", "size": "auto", "output_format": "jpeg"}
{"prompt": "d", "size": "no size"}
)";

RunEntry Done(int64_t index, int32_t side, uint64_t bytes) {
  return {.index = index, .images = {{.file = "a.png", .width = side, .height = side, .bytes = bytes}}};
}

TEST(BatchPlanTest, CountsItemsAndTheRoomThatTheirImagesTake) {
  const BatchPlan plan = PlanOf(kItems);
  EXPECT_EQ(plan.items(), 5);
  EXPECT_EQ(plan.wrong(), 1);
  EXPECT_EQ(plan.items_of_shard(), 5);
  const BatchPlan::Rest rest = plan.RestAfter({}, false, {.width = 10, .height = 10});
  EXPECT_EQ(rest.items, 5);
  EXPECT_EQ(rest.bytes, 180u + 3 * 36000 + 90);
}

TEST(BatchPlanTest, LeavesOutWhatHasEndedAndLearnsFromIt) {
  const BatchPlan plan = PlanOf(kItems);
  std::map<int64_t, RunEntry> entries = {{0, Done(0, 10, 50)}, {2, {.index = 2, .error = absl::InternalError("why")}}};
  EXPECT_EQ(plan.RestAfter(entries, false, {.width = 10, .height = 10}).items, 3);
  EXPECT_EQ(plan.RestAfter(entries, false, {.width = 10, .height = 10}).bytes, 3u * 10000 + 90);
  EXPECT_EQ(plan.RestAfter(entries, true, {.width = 10, .height = 10}).items, 4);
  entries[0] = {.index = 0, .lost = true};
  EXPECT_EQ(plan.RestAfter(entries, false, {.width = 10, .height = 10}).items, 4);
}

TEST(BatchPlanTest, IsOfTheItemsOfOneShard) {
  const BatchPlan plan = PlanOf(kItems, {.index = 1, .count = 3});
  EXPECT_EQ(plan.items(), 5);
  EXPECT_EQ(plan.items_of_shard(), 2);  // items 1 and 4
  EXPECT_EQ(plan.RestAfter({}, false, {.width = 10, .height = 10}).bytes, 3u * 36000);
  EXPECT_EQ(plan.RestAfter({{4, Done(4, 10, 50)}, {2, Done(2, 10, 50)}}, false, {}).items, 1);
}

}  // namespace
}  // namespace tessera::client
