// Tests NCCL's communicators with an NCCL that does everything as late as permitted (tests/support/late_nccl.h).
#include "parallel/nccl/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "tests/support/late_nccl.h"
#include "tests/support/nccl_ranks.h"
#include "tests/support/random_tensor.h"

namespace tessera::parallel {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The numbers of rank `rank`.
at::Tensor Of(int rank, at::IntArrayRef shape, at::ScalarType dtype = at::kDouble) {
  return (at::arange(c10::multiply_integers(shape), at::kDouble).view(shape) + 100 * (rank + 1)).to(dtype);
}
at::Tensor OnDevice(const at::Tensor& x) { return x.to(kPretendDevice); }

TEST(NcclCommunicatorTest, SumsHaveTheValuesOfAllRanksInEveryType) {
  LateNccl nccl;
  OnNcclRanks("ulysses=3", [](int rank, const RankGroups& groups) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong}) {
      const at::Tensor in = OnDevice(Of(rank, {4, 5}, dtype)), out = at::empty_like(in);
      groups.ulysses.Sum(in, out);
      const at::Tensor sum = Of(0, {4, 5}) + Of(1, {4, 5}) + Of(2, {4, 5});
      // Integers, which bf16 and fp16 round at every addition.
      const double bound = dtype == at::kBFloat16 ? 1e-2 : dtype == at::kHalf ? 1e-3 : 0;
      EXPECT_LE(((out.cpu().to(at::kDouble) - sum).abs() / sum).max().item<double>(), bound) << dtype;
      groups.ulysses.Sum(in, in);
      EXPECT_TRUE(in.cpu().equal(out.cpu())) << "in place";
    }
  });
  EXPECT_THAT(nccl.problems(), IsEmpty());
}

TEST(NcclCommunicatorTest, EveryCallGivesWhatTheHostsCommunicatorGives) {
  LateNccl nccl;
  const auto calls = [](int rank, Communicator& group, at::Device device) {
    const auto on = [&](const at::Tensor& x) { return x.to(device); };
    std::vector<at::Tensor> results;
    const std::vector<std::vector<int64_t>> rows = {{2, 2, 2}, {3, 0, 4}, {0, 5, 0}};
    for (const std::vector<int64_t>& of : rows) {
      results.push_back(group.AllGather(on(Of(rank, {of[static_cast<size_t>(rank)], 3})), of));
      results.push_back(group.AllGather(on(Of(rank, {2, of[static_cast<size_t>(rank)], 3})), of, 1));
      const int64_t total = of[0] + of[1] + of[2];
      results.push_back(group.ReduceScatterSum(on(Of(rank, {total, 2})), of));
      results.push_back(group.ReduceScatterSum(on(Of(rank, {2, total})), of, 1));
      std::vector<at::Tensor> send;
      std::vector<std::vector<int64_t>> shapes;
      for (const int64_t count : of) {
        send.push_back(on(Of(rank, {count, 2})));
        shapes.push_back({of[static_cast<size_t>(rank)], 2});
      }
      for (at::Tensor& received : group.AllToAll(send, shapes)) results.push_back(received);
    }
    const at::Tensor shifted = on(at::zeros({4}, at::kDouble));
    group.Shift(on(Of(rank, {4})), (rank + 1) % 3, shifted, (rank + 2) % 3);
    results.push_back(shifted);
    const at::Tensor broadcast = on(Of(rank, {7}));
    group.Broadcast(broadcast, 2);
    results.push_back(broadcast);
    const at::Tensor flags = on(at::full({2}, rank == 1));
    group.Broadcast(flags, 1);
    results.push_back(flags);
    if (rank == 0) group.Send(on(Of(rank, {2, 3})), 1);
    if (rank == 1) results.push_back(on(at::empty({2, 3}, at::kDouble)));
    if (rank == 1) group.Recv(results.back(), 0);
    group.Barrier();
    for (at::Tensor& result : results) result = result.cpu();
    return results;
  };
  std::vector<std::vector<at::Tensor>> host(3), device(3);
  RunRanks(3, [&](ThreadRank& thread) { host[thread.rank()] = calls(thread.rank(), thread.world(), at::kCPU); });
  OnNcclRanks("ulysses=3", [&](int rank, const RankGroups& groups) {
    device[static_cast<size_t>(rank)] = calls(rank, groups.world, kPretendDevice);
  });
  for (size_t rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(host[rank].size(), device[rank].size());
    for (size_t i = 0; i < host[rank].size(); ++i) {
      EXPECT_TRUE(host[rank][i].equal(device[rank][i])) << "rank " << rank << ", result " << i;
    }
  }
  EXPECT_THAT(nccl.problems(), IsEmpty());
  EXPECT_EQ(nccl.destroyed(), nccl.made());
}

TEST(NcclCommunicatorTest, WhatIsReceivedBetweenStartAndFinishIsThereAfterIt) {
  LateNccl nccl;
  OnNcclRanks("ring=4", [](int rank, const RankGroups& groups) {
    at::Tensor own = OnDevice(Of(rank, {6})), next = at::empty_like(own);
    at::Tensor sum = own.clone();
    for (int step = 1; step < 4; ++step) {
      const std::array<Transfer, 2> transfers = {Transfer::Send(own, (rank + 1) % 4),
                                                 Transfer::Receive(next, (rank + 3) % 4)};
      groups.ring.Start(transfers);
      sum.add_(own, step == 1 ? 0 : 1);  // concurrent with the transfer
      groups.ring.Finish();
      std::swap(own, next);
    }
    sum.add_(own);
    EXPECT_TRUE(sum.cpu().equal(Of(0, {6}) + Of(1, {6}) + Of(2, {6}) + Of(3, {6})));
  });
  EXPECT_THAT(nccl.problems(), IsEmpty());
}

TEST(NcclCommunicatorTest, MessagesOfOnePairKeepTheirOrderAndBothCanSendAtOnce) {
  LateNccl nccl;
  OnNcclRanks("pipe=2", [](int rank, const RankGroups& groups) {
    std::vector<at::Tensor> received;
    std::vector<Transfer> transfers;
    for (int i = 0; i < 3; ++i) {
      transfers.push_back(Transfer::Send(OnDevice(Of(10 * rank + i, {i + 1})), 1 - rank));
      received.push_back(at::empty({i + 1}, at::TensorOptions(at::kDouble).device(kPretendDevice)));
      transfers.push_back(Transfer::Receive(received.back(), 1 - rank));
    }
    groups.pipe.Exchange(transfers);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(received[i].cpu().equal(Of(10 * (1 - rank) + i, {i + 1})));
  });
  EXPECT_THAT(nccl.problems(), IsEmpty());
}

TEST(NcclCommunicatorTest, GroupsOfEqualMembersShareACommunicator) {
  for (const auto& [layout, ranks, made] : {std::tuple("ulysses=2", 2, 1), std::tuple("ring=2,ulysses=2", 4, 3),
                                            std::tuple("cfg=2,ring=2,ulysses=2", 8, 5)}) {
    LateNccl nccl;
    OnNcclRanks(layout, [](int rank, const RankGroups& groups) {
      for (Communicator* group : {&groups.cfg, &groups.sequence, &groups.ring, &groups.ulysses, &groups.world}) {
        const at::Tensor one = OnDevice(at::ones({1}, at::kDouble));
        group->Sum(one, one);
        EXPECT_EQ(one.cpu().item<double>(), group->size());
        EXPECT_TRUE(group->capturable());
      }
    });
    EXPECT_EQ(nccl.made(), ranks * made) << layout;
    EXPECT_THAT(nccl.problems(), IsEmpty());
  }
}

TEST(NcclCommunicatorTest, NothingWaitsForTheDeviceUntilAResultIsRead) {
  LateNccl nccl;
  OnNcclRanks("ulysses=2", [](int rank, const RankGroups& groups) {
    at::Tensor x = OnDevice(Of(rank, {64}));
    const HostWaits before = PretendDeviceWaits();
    for (int i = 0; i < 20; ++i) {
      groups.ulysses.Sum(x, x);
      x = groups.ulysses.AllGather(x.slice(0, 32 * rank, 32 * rank + 32).contiguous(), {32, 32});
    }
    EXPECT_EQ(PretendDeviceWaits() - before, HostWaits());
  });
  EXPECT_THAT(nccl.problems(), IsEmpty());
}

TEST(NcclCommunicatorTest, ASendBufferThatIsUsedAgainTooEarlySendsOtherNumbers) {
  LateNccl nccl;
  OnNcclRanks("ring=2", [](int rank, const RankGroups& groups) {
    const at::Tensor own = OnDevice(Of(rank, {6})), other = at::empty_like(own);
    const std::array<Transfer, 2> transfers = {Transfer::Send(own, 1 - rank), Transfer::Receive(other, 1 - rank)};
    groups.ring.Start(transfers);
    if (rank == 1) own.zero_();
    groups.ring.Finish();
    EXPECT_TRUE(other.cpu().equal(rank == 0 ? at::zeros({6}, at::kDouble) : Of(0, {6})));
  });
  EXPECT_THAT(nccl.problems(),
              ElementsAre("rank 1, call 1 (send of 6 Double with 0): what is sent was changed before it "
                          "was sent"));
}

TEST(NcclCommunicatorTest, WhoReadsBeforeFinishReadsNan) {
  LateNccl nccl;
  OnNcclRanks("ring=2", [](int rank, const RankGroups& groups) {
    const at::Tensor own = OnDevice(Of(rank, {6})), other = at::empty_like(own);
    const std::array<Transfer, 2> transfers = {Transfer::Send(own, 1 - rank), Transfer::Receive(other, 1 - rank)};
    groups.ring.Start(transfers);
    const bool reads = rank == 1;
    EXPECT_EQ(reads && (other + 1).cpu().isnan().all().item<bool>(), reads);
    groups.ring.Finish();
    EXPECT_TRUE(other.cpu().equal(Of(1 - rank, {6})));
  });
  EXPECT_THAT(nccl.problems(),
              ElementsAre("rank 1, call 1 (send of 6 Double with 0): an operator uses what it transfers "
                          "without waiting for it"));
}

TEST(NcclCommunicatorTest, TwoGroupsInAnotherOrderAreReportedAsADeadlockWithTheCallsOfBothRanks) {
  LateNccl nccl;
  const CommError::Details error = NcclErrorOf("cfg=2,ulysses=2", [](int rank, const RankGroups& groups) {
    const at::Tensor x = OnDevice(Of(rank, {3}));
    groups.world.Barrier();
    Communicator* order[] = {&groups.ulysses, &groups.world};
    if (rank == 1) std::swap(order[0], order[1]);
    for (Communicator* group : order) group->Sum(x, x);
    groups.world.Barrier();
  });
  EXPECT_THAT(error.reason,
              AllOf(HasSubstr("all ranks wait for each other"), HasSubstr("rank 0, call 1 (all-reduce of 3"),
                    HasSubstr("rank 1, call 2 (all-reduce of 3")));
}

TEST(NcclCommunicatorTest, OneRanksOtherCountIsReportedWithTheCallsOfBothRanks) {
  LateNccl nccl;
  const CommError::Details error = NcclErrorOf("ulysses=2", [](int rank, const RankGroups& groups) {
    const at::Tensor x = OnDevice(Of(rank, {12})), y = x.slice(0, 0, rank == 1 ? 10 : 12);
    groups.ulysses.Sum(x, x);
    groups.ulysses.Sum(y, y);
    groups.ulysses.Barrier();
  });
  EXPECT_THAT(error.reason, AllOf(HasSubstr("rank 1, call 2 (all-reduce of 10 Double)"),
                                  HasSubstr("rank 0, call 2 (all-reduce of 12 Double)"), HasSubstr("does not fit")));
  EXPECT_EQ(nccl.destroyed(), 0) << "a communicator of a world that was poisoned was destroyed";
}

TEST(NcclCommunicatorTest, OtherKindsOfCallsAreReportedAsWell) {
  LateNccl nccl;
  const CommError::Details error = NcclErrorOf("ulysses=2", [](int rank, const RankGroups& groups) {
    const at::Tensor x = OnDevice(Of(rank, {12}));
    if (rank == 0) {
      groups.ulysses.Sum(x, x);
    } else {
      groups.ulysses.Broadcast(x, 0);
    }
    groups.ulysses.Barrier();
  });
  EXPECT_THAT(error.reason, AllOf(HasSubstr("rank 0, call 1 (all-reduce"), HasSubstr("rank 1, call 1 (broadcast")));
}

TEST(NcclCommunicatorTest, MemoryOfTheHostIsRefused) {
  LateNccl nccl;
  OnNcclRanks("ulysses=2", [](int rank, const RankGroups& groups) {
    const at::Tensor x = Of(rank, {2});
    EXPECT_THROW(groups.ulysses.Sum(x, x), c10::Error);
    EXPECT_NO_THROW(groups.control.Sum(x, x));
  });
}

// Attention is concurrent with the ring's transfers, but not with other groups' calls.
TEST(NcclCommunicatorTest, TheRingAloneTakesFewThreadBlocks) {
  {
    LateNccl nccl;
    OnNcclRanks("ring=2,ulysses=2", [](int, const RankGroups&) {}, {.ring_ctas = 4});
    EXPECT_THAT(nccl.ctas(), testing::UnorderedElementsAre(4, 4, 4, 4, 0, 0, 0, 0));
  }
  LateNccl nccl;
  OnNcclRanks("ring=2", [](int rank, const RankGroups& groups) {
    const at::Tensor in = OnDevice(Of(rank, {3}));
    at::Tensor out = at::empty_like(in);
    groups.world.Sum(in, out);
    EXPECT_TRUE(out.cpu().equal(Of(0, {3}) + Of(1, {3})));
  });
  EXPECT_THAT(nccl.ctas(), ElementsAre(NcclOptions().ring_ctas, NcclOptions().ring_ctas)) << "beside the world's";
  EXPECT_THAT(nccl.problems(), IsEmpty());
}

}  // namespace
}  // namespace tessera::parallel
