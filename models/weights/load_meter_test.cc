#include "models/weights/load_meter.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::models {
namespace {

using testing::ElementsAre;
using testing::Pair;

class LoadMeterTest : public ::testing::Test {
 protected:
  std::vector<std::pair<uint64_t, uint64_t>> reports_;
  LoadMeter meter_{{{"transformer", 1000}, {"vae", 24}},
                   [this](uint64_t read, uint64_t total) { reports_.emplace_back(read, total); }};
};

TEST_F(LoadMeterTest, AComponentCountsByItsFilesWhateverPartOfItARankReads) {
  meter_.OnRead("vae", 3, 6);
  meter_.OnRead("transformer", 10, 100);
  meter_.OnRead("transformer", 100, 100);
  meter_.OnRead("vae", 6, 6);
  EXPECT_THAT(reports_,
              ElementsAre(Pair(0, 1024), Pair(12, 1024), Pair(112, 1024), Pair(1012, 1024), Pair(1024, 1024)));
}

TEST_F(LoadMeterTest, NeverDecreasesOrExceedsItsTotal) {
  meter_.OnRead("vae", 7, 6);
  meter_.OnRead("vae", 1, 6);
  meter_.OnRead("vae", 1, 0);
  EXPECT_THAT(reports_, ElementsAre(Pair(0, 1024), Pair(24, 1024)));
}

TEST_F(LoadMeterTest, IgnoresWhatIsNotPartOfTheLoad) {
  meter_.OnRead("text_encoder", 1, 1);
  meter_.Finish();
  meter_.OnRead("vae", 3, 6);
  EXPECT_THAT(reports_, ElementsAre(Pair(0, 1024), Pair(1024, 1024)));
}

}  // namespace
}  // namespace tessera::models
