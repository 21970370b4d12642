// Tests how a group of ranks ends if one of them is missing, differs from the others, or is poisoned.
#include <c10/util/irange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/thread_ranks.h"

namespace tessera::parallel {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr HostCommunicatorOptions kPatient{.deadline = hours(1)};
constexpr HostCommunicatorOptions kHasty{.deadline = milliseconds(300)};
// For ranks that have to be in their calls before it is over, even if a thread stands still for a while.
constexpr std::chrono::seconds kLongEnough{10};

// Returns what each rank's body throws; every rank must throw CommError.
std::vector<CommError> Errors(int ranks, const std::function<void(ThreadRank&)>& body,
                              const HostCommunicatorOptions& options = kPatient) {
  std::vector<std::optional<CommError>> errors(ranks);
  RunRanks(ranks,
           [&](ThreadRank& rank) {
             try {
               body(rank);
             } catch (const CommError& error) {
               errors[rank.rank()] = error;
             }
           },
           {.communicator = options});
  std::vector<CommError> all;
  for (const int r : c10::irange(ranks)) {
    EXPECT_TRUE(errors[r]) << "rank " << r << " did not throw";
    all.push_back(errors[r] ? *errors[r] : CommError({}));
    EXPECT_EQ(all.back().details().rank, errors[r] ? r : -1);
  }
  return all;
}

int Relayed(const std::vector<CommError>& errors) {
  return static_cast<int>(
      std::count_if(errors.begin(), errors.end(), [](const CommError& error) { return error.details().relayed; }));
}

TEST(PoisonTest, WakesEveryWaitingRankAtOnce) {
  const std::vector<CommError> errors = Errors(3, [&](ThreadRank& rank) {
    at::Tensor tensor = at::zeros({4});
    if (rank.rank() == 0) rank.world().Recv(tensor, 2);
    if (rank.rank() == 1) rank.world().Barrier();
    for (const int sleeper : {0, 1})
      while (rank.segment().Area(0, sleeper).bell.sleeping == 0) std::this_thread::yield();
    rank.segment().Poison(2, "rank 2 was killed at step 7");
    rank.world().Sum(tensor, tensor);
  });
  for (const CommError& error : errors) {
    EXPECT_EQ(error.details().culprit, 2);
    EXPECT_TRUE(error.details().relayed);
    EXPECT_EQ(error.details().reason, "rank 2 was killed at step 7");
  }
  EXPECT_STREQ(errors[0].what(), "rank 0, Recv 1 of group world: rank 2 was killed at step 7");
  EXPECT_STREQ(errors[1].what(), "rank 1, Barrier 1 of group world: rank 2 was killed at step 7");
}

TEST(PoisonTest, EndsEveryLaterCallOfEveryGroup) {
  RunRanks(2,
           [](ThreadRank& rank) {
             const std::unique_ptr<Communicator> pair = rank.Join("pair");
             if (rank.rank() == 0) rank.segment().Poison(1, "first reason");
             if (rank.rank() == 0) rank.segment().Poison(0, "second reason");
             while (!rank.segment().IsPoisoned()) std::this_thread::yield();
             at::Tensor x = at::zeros({2});
             for (Communicator* group : {&rank.world(), pair.get()})
               for (int call = 0; call < 2; ++call) {
                 try {
                   group->Sum(x, x);
                   ADD_FAILURE() << "a call after poison returned";
                 } catch (const CommError& error) {
                   EXPECT_EQ(error.details().reason, "first reason");
                 }
               }
           },
           {.groups = {{"pair", {0, 1}}}});
}

TEST(DeadlineTest, NamesTheRankThatDidNotArrive) {
  const std::vector<CommError> errors = Errors(3,
                                               [&](ThreadRank& rank) {
                                                 at::Tensor tensor = at::zeros({4});
                                                 rank.world().Barrier();
                                                 if (rank.rank() == 2)
                                                   while (!rank.segment().IsPoisoned()) std::this_thread::yield();
                                                 rank.world().Sum(tensor, tensor);
                                               },
                                               {.deadline = kLongEnough});
  for (const CommError& error : errors) {
    EXPECT_EQ(error.details().culprit, 2);
    EXPECT_EQ(error.details().reason, "rank 2 did not arrive within 10 s (it is in no call of group world)");
  }
  EXPECT_EQ(errors[0].details().sequence, 2);
}

TEST(DeadlineTest, NamesTheRankThatSendsNothing) {
  const std::vector<CommError> errors = Errors(
      2,
      [&](ThreadRank& rank) {
        at::Tensor tensor = at::zeros({4});
        if (rank.rank() == 1)
          while (!rank.segment().IsPoisoned()) std::this_thread::yield();
        rank.world().Recv(tensor, 1 - rank.rank());
      },
      kHasty);
  EXPECT_THAT(errors[0].what(), HasSubstr("rank 1 made no progress for 0.3 s (it is in no call of group world)"));
}

TEST(DeadlineTest, EndsASendThatNoRankReceives) {
  const std::vector<CommError> errors = Errors(
      2,
      [&](ThreadRank& rank) {
        if (rank.rank() == 1)
          while (!rank.segment().IsPoisoned()) std::this_thread::yield();
        rank.world().Send(at::zeros({1 << 20}), 1 - rank.rank());
      },
      kHasty);
  EXPECT_EQ(errors[0].details().culprit, 1);
  EXPECT_FALSE(errors[0].details().relayed);
  EXPECT_TRUE(errors[1].details().relayed);
}

TEST(MismatchTest, NamesTheRankThatIssuedAnotherCall) {
  for (int odd = 0; odd < 3; ++odd) {
    const std::vector<CommError> errors = Errors(3, [&](ThreadRank& rank) {
      at::Tensor tensor = at::zeros({6});
      if (rank.rank() == odd)
        rank.world().AllGather(at::zeros({2}), {2, 2, 2});
      else
        rank.world().Sum(tensor, tensor);
    });
    for (const CommError& error : errors) {
      EXPECT_EQ(error.details().culprit, odd);
      EXPECT_EQ(error.details().reason,
                "rank " + std::to_string(odd) +
                    " issued AllGather of Float [6] by rows [2, 2, 2] while the others issued Sum of Float [6]"
                    " (collective 1 of group world)");
    }
    EXPECT_LT(Relayed(errors), 3);
  }
}

// One rank makes each of the two calls; the group must end with this reason.
void ExpectMismatch(const std::function<void(Communicator&)>& zero, const std::function<void(Communicator&)>& one,
                    const std::string& reason) {
  const std::vector<CommError> errors =
      Errors(2, [&](ThreadRank& rank) { (rank.rank() == 0 ? zero : one)(rank.world()); });
  for (const CommError& error : errors) EXPECT_THAT(error.details().reason, HasSubstr(reason));
}

std::function<void(Communicator&)> AllReduce(at::IntArrayRef shape, at::ScalarType dtype) {
  return [shape = shape.vec(), dtype](Communicator& group) {
    at::Tensor tensor = at::zeros(shape, dtype);
    group.Sum(tensor, tensor);
  };
}

TEST(MismatchTest, NamesDifferentSizes) {
  ExpectMismatch(AllReduce({2, 3}, at::kFloat), AllReduce({2, 4}, at::kFloat),
                 "rank 1 issued Sum of Float [2, 4] while rank 0 issued Sum of Float [2, 3]");
}

TEST(MismatchTest, NamesDifferentDtypes) {
  ExpectMismatch(AllReduce({2, 3}, at::kFloat), AllReduce({2, 3}, at::kDouble),
                 "rank 1 issued Sum of Double [2, 3] while rank 0 issued Sum of Float [2, 3]");
}

TEST(MismatchTest, NamesDifferentRowsOfOneTotal) {
  const auto gather = [](const std::vector<int64_t>& rows) {
    return [rows](Communicator& group) { group.AllGather(at::zeros({rows[group.rank()]}), rows); };
  };
  ExpectMismatch(
      gather({3, 5}), gather({4, 4}),
      "rank 1 issued AllGather of Float [8] by rows [4, 4] while rank 0 issued AllGather of Float [8] by rows "
      "[3, 5]");
}

TEST(MismatchTest, NamesDifferentRoots) {
  const auto broadcast = [](int root) {
    return [root](Communicator& group) {
      at::Tensor tensor = at::zeros({2});
      group.Broadcast(tensor, root);
      group.Barrier();
    };
  };
  ExpectMismatch(
      broadcast(0), broadcast(1),
      "rank 1 issued Broadcast of Float [2] from rank 1 while rank 0 issued Broadcast of Float [2] from rank 0");
}

TEST(MismatchTest, NamesABarrierAgainstACallThatMovesData) {
  ExpectMismatch([](Communicator& group) { group.Barrier(); }, AllReduce({0}, at::kFloat),
                 "rank 1 issued Sum of Float [0] while rank 0 issued Barrier");
}

TEST(MismatchTest, NamesAPartThatIsNotTheOneExpected) {
  const auto all_to_all = [](int64_t sent, int64_t received) {
    return [=](Communicator& group) {
      std::vector<at::Tensor> send(2, at::zeros({1})), receive(2, at::zeros({1}));
      send[1 - group.rank()] = at::zeros({sent});
      receive[1 - group.rank()] = at::zeros({received});
      group.AllToAll(send, receive);
      group.Barrier();
    };
  };
  ExpectMismatch(all_to_all(3, 5), all_to_all(4, 3),
                 "rank 1 sent a part for AllToAll of Float [4] while rank 0 expected one for AllToAll of Float [5]");
}

TEST(MismatchTest, NamesAMessageThatIsNotTheOneExpected) {
  ExpectMismatch(
      [](Communicator& group) {
        at::Tensor tensor = at::zeros({2, 3});
        group.Recv(tensor, 1);
      },
      [](Communicator& group) {
        group.Send(at::zeros({2, 3}, at::kDouble), 0);
        group.Barrier();
      },
      "rank 1 sent a part for Send of Double [2, 3] while rank 0 expected one for Recv of Float [2, 3]");
}

// Two groups of the same ranks, which the two ranks use in opposite orders. Messages that fit into slots are delivered
// all the same; a library that buffers nothing for a receiver would hang.
std::vector<std::optional<CommError>> TwoGroupsInAnotherOrder(bool rendezvous) {
  std::vector<std::optional<CommError>> errors(2);
  HostCommunicatorOptions options = kPatient;
  if (rendezvous) options = {.deadline = kLongEnough, .rendezvous = true};
  RunRanks(2,
           [&](ThreadRank& rank) {
             const std::unique_ptr<Communicator> ring = rank.Join("ring"), ulysses = rank.Join("ulysses");
             const int self = rank.rank(), other = 1 - self;
             const at::Tensor sent = at::ones({4}), received = at::zeros({4});
             try {
               for (Communicator* group :
                    self == 0 ? std::array{ring.get(), ulysses.get()} : std::array{ulysses.get(), ring.get()}) {
                 group->Send(sent, other);
               }
               for (Communicator* group : {ring.get(), ulysses.get()}) group->Recv(received, other);
             } catch (const CommError& error) {
               errors[static_cast<size_t>(self)] = error;
             }
           },
           {.groups = {{"ring", {0, 1}}, {"ulysses", {0, 1}}}, .communicator = options});
  return errors;
}

TEST(OrderTest, RendezvousShowsGroupsThatOneRankUsesInAnotherOrder) {
  for (const std::optional<CommError>& error : TwoGroupsInAnotherOrder(/*rendezvous=*/false))
    EXPECT_FALSE(error) << error->what();
  const std::vector<std::optional<CommError>> errors = TwoGroupsInAnotherOrder(/*rendezvous=*/true);
  int named = 0;
  for (size_t r = 0; r < 2; ++r) {
    ASSERT_TRUE(errors[r]) << "rank " << r;
    if (errors[r]->details().relayed) continue;
    const std::string other = std::to_string(1 - r), group = r == 0 ? "ulysses" : "ring";
    EXPECT_EQ(errors[r]->details().reason,
              "rank " + other + " made no progress for 10 s (it is in Send 1 of group " + group + ")");
    ++named;
  }
  EXPECT_GE(named, 1);
}

TEST(RunRanksTest, ThrowsWhatTheLowestFailingRankThrew) {
  try {
    RunRanks(4, [](ThreadRank& rank) {
      if (rank.rank() >= 2) throw std::out_of_range("rank " + std::to_string(rank.rank()));
      rank.world().Barrier();
    });
    FAIL() << "nothing was thrown";
  } catch (const std::out_of_range& error) {
    // Rank 3 may have been the first. Rank 2 threw as well, and ranks that only relayed an error are ignored.
    EXPECT_STREQ(error.what(), "rank 2");
  }
}

TEST(RunRanksTest, EndsRanksThatWaitForOneThatLeft) {
  EXPECT_THROW(RunRanks(2,
                        [](ThreadRank& rank) {
                          if (rank.rank() == 1) rank.world().Barrier();
                        },
                        {.communicator = kPatient, .deadline = std::chrono::seconds(1)}),
               CommError);
}

TEST(ArgumentsTest, ThatCannotBeMeantAreRefusedBeforeAnythingIsSent) {
  SingleRank one;
  at::Tensor x = at::zeros({2, 3}), y = at::zeros({2, 3}, at::kBool);
  EXPECT_THROW(one.AllGather(x, {3}), c10::Error);
  EXPECT_THROW(one.AllGather(x, {2, 0}), c10::Error);
  EXPECT_THROW(one.ReduceScatterSum(x, {3}, 0), c10::Error);
  EXPECT_THROW(one.Sum(y, y), c10::Error);
  EXPECT_THROW(one.Broadcast(x, 1), c10::Error);
  EXPECT_THROW(one.Send(x, 0), c10::Error);
  EXPECT_THROW(one.Finish(), c10::Error);
  const at::Tensor strided = at::zeros({3, 2}).t();
  EXPECT_THROW(one.Sum(strided, x), c10::Error);
  EXPECT_THROW(one.Sum(x, strided), c10::Error);
  EXPECT_THROW(one.Broadcast(strided, 0), c10::Error);
  EXPECT_THROW(one.Gather(x, at::zeros({4, 3})), c10::Error);
}

}  // namespace
}  // namespace tessera::parallel
