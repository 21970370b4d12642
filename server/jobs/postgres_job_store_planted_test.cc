// Runs checks of postgres_job_store_test.cc against the bugs that they must find.
#include <gtest/gtest.h>

#include "tests/jobs/shared_stores.h"
#include "tests/support/planted_bug.h"

namespace tessera::server {
namespace {

struct StoreBug {
  const char* name;
  bool (*holds)();
};

class PlantedStoreBugTest : public testing::TestWithParam<StoreBug> {};

TEST_P(PlantedStoreBugTest, IsFound) {
  const PlantedBug planted(GetParam().name);
  EXPECT_FALSE(GetParam().holds());
}

INSTANTIATE_TEST_SUITE_P(, PlantedStoreBugTest,
                         testing::Values(StoreBug{"report_without_its_attempt", AServerThatWasGivenUpFinishesNothing},
                                         StoreBug{"lease_on_local_time", LeasesAreOfTheTimeOfTheDatabase}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::server
