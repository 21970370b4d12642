// Runs the checks of serving_parts_test.cc against the bugs that they must find.
#include <gtest/gtest.h>

#include "tests/support/planted_bug.h"
#include "tests/support/serving_parts.h"

namespace tessera::server {
namespace {

struct ServingBug {
  const char* name;
  bool (*holds)();
};

class PlantedServingBugTest : public testing::TestWithParam<ServingBug> {};

TEST_P(PlantedServingBugTest, IsFound) {
  ASSERT_TRUE(GetParam().holds());
  const PlantedBug planted(GetParam().name);
  EXPECT_FALSE(GetParam().holds());
}

INSTANTIATE_TEST_SUITE_P(
    , PlantedServingBugTest,
    testing::Values(ServingBug{"fair_share_inverted", TheKeyThatWasServedLeastIsNext},
                    ServingBug{"claim_reported_before_it_is_made", AClaimIsReportedAfterItIsMade},
                    ServingBug{"stale_notice_is_followed", ALateNoticeTakesNothingFromAGroup},
                    ServingBug{"watch_missed_on_adoption", AJobThatEndsWhileItsStateIsReadIsSeenToEnd},
                    ServingBug{"digest_misses_a_field", EveryFieldChangesTheDigest},
                    ServingBug{"finished_task_is_queued_again", AFinishedTaskIsNotQueuedAgainWhenItsGroupEnds}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::server
