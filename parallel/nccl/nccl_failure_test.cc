// Tests what ends a group of NCCL's, and what its ranks report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "tests/support/late_nccl.h"
#include "tests/support/nccl_ranks.h"

namespace tessera::parallel {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// Longer than a thread may stand still before it takes part.
constexpr NcclOptions kHasty{.deadline = std::chrono::seconds(10)};

at::Tensor Ones(int64_t count) { return at::ones({count}, at::kDouble).to(kPretendDevice); }

// Returns why the ranks of ulysses=2 do not use NCCL, or an empty string; a sum over them must be correct in any case.
std::string WhyNot() {
  const Mesh mesh = *Mesh::Create({.ulysses = 2}, 2);
  std::string why_not;
  ThreadRanksOptions options{.groups = MeshGroups(mesh)};
  options.communicator.addresses_devices = true;
  RunRanks(
      2,
      [&](ThreadRank& thread) {
        const MeshCommunicators communicators(kPretendDevice, thread.shared_segment(), thread.rank(),
                                              options.communicator, {});
        const at::Tensor x = Ones(3);
        communicators.groups().ulysses.Sum(x, x);
        EXPECT_TRUE(x.cpu().equal(at::full({3}, 2, at::kDouble)));
        EXPECT_EQ(communicators.groups().ulysses.capturable(), communicators.uses_nccl());
        EXPECT_EQ(communicators.uses_nccl(), communicators.why_not_nccl().empty());
        if (thread.rank() == 0) why_not = communicators.why_not_nccl();
      },
      options);
  return why_not;
}

TEST(NcclChoiceTest, RanksWithACardEachUseNccl) {
  LateNccl nccl;
  EXPECT_EQ(WhyNot(), "");
  EXPECT_EQ(nccl.made(), 2);
}

TEST(NcclChoiceTest, RanksThatShareACardUseTheHostsMemory) {
  LateNccl nccl({.one_card = true});
  EXPECT_EQ(WhyNot(), "rank 0 and rank 1 share a GPU");
  EXPECT_EQ(nccl.made(), 0);
}

TEST(NcclChoiceTest, ATableOfAnotherVersionIsRefusedWithBothVersions) {
  LateNccl nccl({.api_version = 99});
  EXPECT_EQ(WhyNot(),
            "rank 0: its functions are of version 99, the worker's of version 1; install both from one build");
}

TEST(NcclChoiceTest, RanksWithUnequalVersionsOfTheLibraryUseTheHostsMemory) {
  LateNccl nccl({.other_version_of_rank = 1});
  EXPECT_EQ(WhyNot(), "rank 1 uses another version of NCCL than rank 0");
}

TEST(NcclFailureTest, AWorldThatNeverComesTogetherEndsAtTheDeadline) {
  LateNccl nccl({.init_never_ends = true});
  const CommError::Details error =
      NcclErrorOf("ulysses=2", [](int, const RankGroups&) {}, {.connect_deadline = milliseconds(300)});
  EXPECT_EQ(error.call, "Connect");
  EXPECT_EQ(error.group, "world");
  EXPECT_THAT(error.reason, HasSubstr("was not complete after 0.3 s"));
  EXPECT_EQ(nccl.destroyed(), 0);
}

TEST(NcclFailureTest, AnIdThatCannotBeMadeEndsAllRanksAndNamesTheFirst) {
  LateNccl nccl({.no_id = true});
  std::atomic<int> named = 0;
  const Mesh mesh = *Mesh::Create({.ulysses = 3}, 3);
  const ThreadRanksOptions options{.groups = MeshGroups(mesh)};
  RunRanks(
      3,
      [&](ThreadRank& thread) {
        try {
          const MeshCommunicators communicators(kPretendDevice, thread.shared_segment(), thread.rank(),
                                                options.communicator, {});
          ADD_FAILURE() << "rank " << thread.rank() << " connected";
        } catch (const CommError& error) {
          EXPECT_THAT(error.what(), HasSubstr(thread.rank() == 0 ? "Connect 1 of group world" : "rank 0"));
          named += error.details().culprit == 0 ? 1 : 0;
        }
      },
      options);
  EXPECT_EQ(named, 3);
}

TEST(NcclFailureTest, AnAsynchronousErrorNamesTheRankAndTheFirstCallThatIsNotDone) {
  LateNccl nccl({.says_nothing = true, .breaks_rank = 1, .breaks_call = 2});
  const CommError::Details error = NcclErrorOf("ulysses=2",
                                               [](int, const RankGroups& groups) {
                                                 const at::Tensor x = Ones(3);
                                                 groups.ulysses.Sum(x, x);
                                                 EXPECT_EQ(x.cpu().sum().item<double>(), 6);
                                                 groups.ulysses.Sum(x, x);
                                                 groups.ulysses.Sum(x, x);
                                                 groups.ulysses.Barrier();
                                               },
                                               {.deadline = std::chrono::seconds(20)});
  EXPECT_EQ(error.rank, 1);
  EXPECT_EQ(error.group, "ulysses");
  EXPECT_EQ(error.call, "Sum");
  EXPECT_EQ(error.sequence, 2);
  EXPECT_THAT(error.reason, AllOf(HasSubstr("remote process error"), HasSubstr("rank 1 lost its connection")));
  EXPECT_EQ(nccl.destroyed(), 0) << "a communicator of a world that was poisoned was destroyed";
}

TEST(NcclFailureTest, APeerThatIsGoneBeforeACallIsNamedAtTheDeadline) {
  LateNccl nccl({.says_nothing = true});
  const CommError::Details error = NcclErrorOf(
      "ulysses=3",
      [](int rank, const RankGroups& groups) {
        const at::Tensor x = Ones(3);
        groups.ulysses.Sum(x, x);
        groups.ulysses.Barrier();
        if (rank == 1) return;
        groups.ulysses.Sum(x, x);
        groups.ulysses.Barrier();
      },
      kHasty);
  EXPECT_EQ(error.call, "Sum");
  EXPECT_EQ(error.sequence, 3);
  EXPECT_EQ(error.culprit, 1);
  EXPECT_THAT(error.reason, AllOf(HasSubstr("was not complete after 10 s"), HasSubstr("rank 1 waits in no call")));
}

TEST(NcclFailureTest, APeerThatEndsWithinACallEndsTheWaitsOfTheOthers) {
  LateNccl nccl({.says_nothing = true});
  std::atomic<int> connected = 0, relayed = 0;
  EXPECT_THROW(OnNcclRanks("ulysses=3",
                           [&](int rank, const RankGroups& groups) {
                             const at::Tensor x = Ones(3);
                             ++connected;
                             while (rank == 2 && connected < 3) std::this_thread::yield();
                             if (rank == 2) throw std::runtime_error("a planted end");
                             try {
                               groups.ulysses.Sum(x, x);
                               groups.ulysses.Barrier();
                             } catch (const CommError& error) {
                               relayed += error.details().relayed && error.details().culprit == 2 ? 1 : 0;
                               EXPECT_THAT(error.what(), HasSubstr("a planted end"));
                               EXPECT_THAT(error.what(), HasSubstr("Sum 1 of group ulysses"));
                             }
                           },
                           {.deadline = std::chrono::seconds(20)}),
               std::runtime_error);
  EXPECT_EQ(relayed, 2);
  EXPECT_EQ(nccl.destroyed(), 0);
}

TEST(NcclFailureTest, APeerThatEndsAfterACallDoesNotSpoilIt) {
  LateNccl nccl;
  OnNcclRanks("ulysses=2",
              [](int rank, const RankGroups& groups) {
                const at::Tensor x = Ones(3);
                groups.ulysses.Sum(x, x);
                if (rank == 1) return;
                EXPECT_EQ(x.cpu().sum().item<double>(), 6);
                static_cast<NcclCommunicator&>(groups.ulysses).Wait();
              },
              {});
  EXPECT_THAT(nccl.problems(), IsEmpty());
}

TEST(NcclFailureTest, PoisonOfAThirdPartyEndsAWaitLongBeforeItsDeadline) {
  LateNccl nccl({.says_nothing = true});
  const Mesh mesh = *Mesh::Create({.ulysses = 2}, 2);
  const ThreadRanksOptions options{.groups = MeshGroups(mesh)};
  std::atomic<bool> connected = false;
  RunRanks(
      2,
      [&](ThreadRank& thread) {
        const at::NoGradGuard no_gradients;
        const MeshCommunicators communicators(kPretendDevice, thread.shared_segment(), thread.rank(),
                                              options.communicator, {.deadline = std::chrono::hours(1)});
        Communicator& group = communicators.groups().ulysses;
        const at::Tensor x = Ones(3);
        if (thread.rank() == 1) {
          // As the front end does for a rank that makes no progress.
          while (!connected || !thread.segment().IsInCall(0)) std::this_thread::yield();
          thread.segment().Poison(1, "rank 1 no longer gets on");
          EXPECT_THROW(group.Sum(x, x), CommError);
          return;
        }
        connected = true;
        try {
          group.Sum(x, x);
          static_cast<NcclCommunicator&>(group).Wait();
          ADD_FAILURE() << "the wait ended";
        } catch (const CommError& error) {
          EXPECT_TRUE(error.details().relayed);
          EXPECT_EQ(error.details().culprit, 1);
          EXPECT_THAT(error.what(), HasSubstr("rank 1 no longer gets on"));
        }
        EXPECT_THROW(group.Sum(x, x), CommError) << "the group is of no use afterwards";
      },
      options);
  EXPECT_EQ(nccl.destroyed(), 0);
}

}  // namespace
}  // namespace tessera::parallel
