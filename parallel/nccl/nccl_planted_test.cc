// Plants bugs of NCCL's communicators one at a time: the late NCCL must report which rank did what in which call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/late_nccl.h"
#include "tests/support/nccl_ranks.h"
#include "tests/support/planted_bug.h"

namespace tessera::parallel {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

struct Shifted {
  bool is_right = true, has_nan = false;
  std::vector<std::string> problems;
};

// Returns the outcome of a shift concurrent with a computation on two ranks.
Shifted Shift(const char* bug) {
  const PlantedBug planted(bug);
  LateNccl nccl;
  Shifted result;
  std::mutex mutex;
  OnNcclRanks("ring=2", [&](int rank, const RankGroups& groups) {
    const at::Tensor own = at::full({6}, rank + 1, at::kDouble).to(kPretendDevice).mul_(2), other = at::empty_like(own);
    const std::array<Transfer, 2> transfers = {Transfer::Send(own, 1 - rank), Transfer::Receive(other, 1 - rank)};
    groups.ring.Start(transfers);
    const at::Tensor tripled = own * 3;
    groups.ring.Finish();
    const at::Tensor sum = (tripled + other).cpu();
    const std::lock_guard lock(mutex);
    result.is_right = result.is_right && sum.equal(at::full({6}, 6 * (rank + 1) + 2 * (2 - rank), at::kDouble));
    result.has_nan = result.has_nan || sum.isnan().any().item<bool>();
  });
  result.problems = nccl.problems();
  return result;
}

TEST(PlantedNcclTest, NoBugIsReportedWhereThereIsNone) {
  const Shifted shifted = Shift("");
  EXPECT_TRUE(shifted.is_right);
  EXPECT_THAT(shifted.problems, IsEmpty());
}

TEST(PlantedNcclTest, AComputationThatDoesNotWaitForWhatIsReceivedReadsNan) {
  const Shifted shifted = Shift("finish_waits_for_nothing");
  EXPECT_TRUE(shifted.has_nan);
  for (const char* rank : {"rank 0, call 1 (send of 6 Double with 1)", "rank 1, call 1 (send of 6 Double with 0)"}) {
    EXPECT_THAT(shifted.problems, Contains(AllOf(HasSubstr(rank), HasSubstr("without waiting for it"))));
  }
}

TEST(PlantedNcclTest, ATransferThatDoesNotWaitForWhatIsComputedTransfersNan) {
  const Shifted shifted = Shift("start_waits_for_nothing");
  EXPECT_TRUE(shifted.has_nan);
  for (const char* rank : {"rank 0, call 1", "rank 1, call 1"}) {
    EXPECT_THAT(shifted.problems,
                Contains(AllOf(HasSubstr(rank), HasSubstr("the side stream does not wait for what computes"))));
  }
}

TEST(PlantedNcclTest, ACountThatIsOffIsReportedWithBothEnds) {
  const PlantedBug planted("count_off_by_one");
  LateNccl nccl;
  const CommError::Details error = NcclErrorOf("ulysses=2", [](int rank, const RankGroups& groups) {
    const at::Tensor x = at::ones({12}, at::kDouble).to(kPretendDevice), y = at::empty_like(x);
    groups.ulysses.Shift(x, 1 - rank, y, 1 - rank);
    groups.ulysses.Barrier();
  });
  EXPECT_EQ(error.call, "Shift");
  EXPECT_EQ(error.sequence, 1);
  EXPECT_THAT(error.reason, AllOf(HasSubstr("rank 1, call 1 (send of 11 Double with 0)"),
                                  HasSubstr("rank 0, call 1 (receive of 12 Double with 1)")));
}

TEST(PlantedNcclTest, ARankThatDoesNotSplitAGroupIsNamedAtTheDeadline) {
  const PlantedBug planted("group_not_split");
  LateNccl nccl;
  const CommError::Details error = NcclErrorOf("ring=2,ulysses=2", [](int, const RankGroups&) {},
                                               {.connect_deadline = std::chrono::milliseconds(300)});
  EXPECT_EQ(error.call, "Split");
  EXPECT_EQ(error.group, "ring");
  EXPECT_THAT(error.reason, HasSubstr("was not complete after 0.3 s"));
  EXPECT_THAT(error.reason, HasSubstr("rank 1 waits in no call of this group"));
}

}  // namespace
}  // namespace tessera::parallel
