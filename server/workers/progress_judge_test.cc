#include "server/workers/progress_judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::server {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(50);
constexpr PauseBound kStep = {.idle = absl::Seconds(10), .predicted = absl::Seconds(3), .is_step = true};
constexpr PauseBound kFirstStep = {.idle = absl::Minutes(5), .predicted = absl::Seconds(3), .is_step = true};

// Two ranks, observed every 50 ms.
class ProgressJudgeTest : public ::testing::Test {
 protected:
  // Simulates `time` during which each rank uses its share of a processor and begins `beats` operators per observation.
  // Returns the first pause that was judged too long.
  std::optional<absl::Duration> Pass(absl::Duration time, std::vector<double> shares, uint64_t beats,
                                     const std::optional<PauseBound>& bound) {
    std::optional<absl::Duration> pause;
    for (absl::Duration passed; passed < time; passed += kInterval) {
      now_ += kInterval;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        ranks_[rank].effort += shares[rank] * kInterval;
        ranks_[rank].beats += beats;
      }
      const std::optional<absl::Duration> found = judge_.Observe(now_, ranks_, bound);
      if (!pause.has_value()) pause = found;
    }
    return pause;
  }

  absl::Duration now_ = absl::Hours(1);
  std::vector<RankProgress> ranks_ = std::vector<RankProgress>(2);
  ProgressJudge judge_{2};
};

TEST_F(ProgressJudgeTest, AnIdleGroupIsFoundAtItsBound) {
  EXPECT_EQ(Pass(absl::Seconds(20), {0.9, 0.9}, 1, kStep), std::nullopt);
  const std::optional<absl::Duration> pause = Pass(absl::Seconds(20), {0, 0}, 0, kStep);
  ASSERT_TRUE(pause.has_value());
  EXPECT_GE(*pause, absl::Seconds(10));
  EXPECT_LE(*pause, absl::Seconds(10) + 2 * kInterval);
}

// Timers and the measurement itself use a little processor time.
TEST_F(ProgressJudgeTest, AGroupThatWaitsIsIdleThoughItTakesSomeProcessorTime) {
  EXPECT_EQ(Pass(absl::Seconds(1), {0.9, 0.9}, 1, kStep), std::nullopt);
  EXPECT_TRUE(Pass(absl::Seconds(15), {0.005, 0.005}, 0, kStep).has_value());
}

TEST_F(ProgressJudgeTest, WorkOfOneRankIsProgressUpToTwentyTimesThePrediction) {
  EXPECT_EQ(Pass(absl::Seconds(1), {1, 1}, 1, kStep), std::nullopt);
  EXPECT_EQ(Pass(absl::Seconds(59), {0, 0.5}, 0, kStep), std::nullopt);
  const std::optional<absl::Duration> pause = Pass(absl::Seconds(5), {0, 0.5}, 0, kStep);
  ASSERT_TRUE(pause.has_value());
  EXPECT_GE(*pause, absl::Seconds(60));
  EXPECT_LE(*pause, absl::Seconds(60) + 2 * kInterval);
}

TEST_F(ProgressJudgeTest, WithoutAPredictionARankThatSpinsIsFoundAtTheBoundOfAnIdleOne) {
  const PauseBound unknown = {.idle = absl::Seconds(10), .is_step = true};
  EXPECT_EQ(Pass(absl::Seconds(1), {1, 1}, 1, unknown), std::nullopt);
  EXPECT_EQ(Pass(absl::Seconds(9), {1, 1}, 0, unknown), std::nullopt);
  EXPECT_TRUE(Pass(absl::Seconds(2), {1, 1}, 0, unknown).has_value());
}

TEST_F(ProgressJudgeTest, ADeadlockAfterLongOperatorsIsFoundAsSoonAsAfterShortOnes) {
  EXPECT_EQ(Pass(absl::Seconds(50), {1, 1}, 0, kStep), std::nullopt);  // one long operator
  EXPECT_EQ(Pass(kInterval, {1, 1}, 1, kStep), std::nullopt);
  const std::optional<absl::Duration> pause = Pass(absl::Seconds(30), {0, 0}, 0, kStep);
  ASSERT_TRUE(pause.has_value());
  EXPECT_LE(*pause, absl::Seconds(10) + 2 * kInterval);
}

// A pause that ended by itself counts as normal. It may come from swapping, or from a device that reports nothing in
// the meantime.
TEST_F(ProgressJudgeTest, TenTimesTheLongestPauseOfAllStepsIsAllowedTheFirstAmongThem) {
  EXPECT_EQ(Pass(absl::Seconds(3), {0, 0}, 0, kFirstStep), std::nullopt);
  EXPECT_EQ(Pass(kInterval, {1, 1}, 1, kFirstStep), std::nullopt);
  EXPECT_EQ(Pass(absl::Seconds(29), {0, 0}, 0, kStep), std::nullopt);
  EXPECT_TRUE(Pass(absl::Seconds(4), {0, 0}, 0, kStep).has_value());
}

TEST_F(ProgressJudgeTest, NothingIsAPauseWhileNoReplyIsPending) {
  EXPECT_EQ(Pass(absl::Hours(1), {0, 0}, 0, std::nullopt), std::nullopt);
  EXPECT_EQ(Pass(absl::Seconds(9), {0, 0}, 0, kStep), std::nullopt);
}

}  // namespace
}  // namespace tessera::server
