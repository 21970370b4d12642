#include "server/workers/load_progress.h"

#include <cstdint>
#include <limits>
#include <memory>

#include "gtest/gtest.h"
#include "parallel/segment/segment.h"

namespace tessera::server {
namespace {

std::shared_ptr<parallel::HostSegment> Segment(int ranks) {
  return *parallel::HostSegment::CreateInHeap({.ranks = ranks});
}

void Report(parallel::HostSegment& segment, int rank, uint64_t read, uint64_t total) {
  segment.Load(rank).read = read;
  segment.Load(rank).total = total;
}

TEST(LoadProgress, IsZeroBeforeAnyRankHasBegun) { EXPECT_EQ(LoadedPart(*Segment(2)), 0); }

TEST(LoadProgress, IsTheMeanOverTheRanksWhateverTheirSizes) {
  const auto segment = Segment(4);
  Report(*segment, 0, 1000, 1000);
  Report(*segment, 1, 1, 2);
  Report(*segment, 2, 0, 7);
  EXPECT_EQ(LoadedPart(*segment), 0.375);
}

TEST(LoadProgress, IsAtMostOneWhateverARankReports) {
  const auto segment = Segment(1);
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  Report(*segment, 0, kMost, 3);
  EXPECT_EQ(LoadedPart(*segment), 1);
  Report(*segment, 0, kMost, kMost);
  EXPECT_EQ(LoadedPart(*segment), 1);
  Report(*segment, 0, kMost, 0);
  EXPECT_EQ(LoadedPart(*segment), 0);
}

}  // namespace
}  // namespace tessera::server
