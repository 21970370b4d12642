#include "parallel/host/host_communicator.h"

#include <c10/util/irange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <tuple>

#include "tests/support/thread_ranks.h"

namespace tessera::parallel {
namespace {

using ::testing::Bool;
using ::testing::Combine;
using ::testing::TestWithParam;
using ::testing::Values;

const std::vector<at::ScalarType> kMoved = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf,
                                            at::kLong,   at::kInt,   at::kByte,     at::kBool};
const std::vector<at::ScalarType> kSummed = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong};

// Returns arbitrary bits, including NaNs.
at::Tensor RandomBits(at::IntArrayRef shape, at::ScalarType dtype, uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  if (dtype == at::kBool) return at::randint(0, 2, shape, generator, at::kLong).to(at::kBool);
  std::vector<int64_t> bytes = shape.vec();
  bytes.push_back(static_cast<int64_t>(c10::elementSize(dtype)));
  return at::randint(0, 256, bytes, generator, at::kLong).to(at::kByte).view(dtype).squeeze(-1);
}

// Returns numbers of such different magnitudes that a sum depends on its order.
at::Tensor RandomNumbers(at::IntArrayRef shape, at::ScalarType dtype, uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  if (dtype == at::kLong) return at::randint(-1000, 1000, shape, generator, at::kLong);
  const at::Tensor exponents = at::randint(-6, 6, shape, generator, at::kDouble);
  return (at::randn(shape, generator, at::kDouble) * at::exp2(exponents)).to(dtype);
}

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor left = a.contiguous(), right = b.contiguous();
  return left.numel() == 0 || std::memcmp(left.data_ptr(), right.data_ptr(), left.numel() * left.element_size()) == 0;
}

at::Tensor SumInRankOrder(const std::vector<at::Tensor>& parts) {
  const at::ScalarType dtype = parts[0].scalar_type();
  const at::ScalarType wide = dtype == at::kBFloat16 || dtype == at::kHalf ? at::kFloat : dtype;
  at::Tensor sum = parts[0].to(wide);
  for (const size_t r : c10::irange(size_t{1}, parts.size())) sum = sum + parts[r].to(wide);
  return sum.to(dtype);
}

// Rows per rank, mostly uneven; some ranks have no rows.
std::vector<std::vector<int64_t>> RowTables(int ranks) {
  std::vector<std::vector<int64_t>> tables = {{5, 3, 4, 7}, {6, 0, 2, 3}, {1, 1, 1, 1}, {0, 9, 0, 0}};
  for (std::vector<int64_t>& table : tables) table.resize(ranks);
  return tables;
}

std::vector<std::vector<at::Tensor>> AllTensors(int ranks, at::IntArrayRef shape, at::ScalarType dtype) {
  std::vector<std::vector<at::Tensor>> tensors(ranks);
  for (const int from : c10::irange(ranks))
    for (const int to : c10::irange(ranks)) tensors[from].push_back(RandomBits(shape, dtype, 100 * from + to));
  return tensors;
}

// Parameters: the number of ranks, and whether a send waits for its receiver.
class HostCommunicatorTest : public TestWithParam<std::tuple<int, bool>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  ThreadRanksOptions Options() const {
    ThreadRanksOptions options;
    options.communicator.rendezvous = std::get<1>(GetParam());
    return options;
  }
  // Uses the smallest slots, so that ordinary tensors need many.
  ThreadRanksOptions SmallSlots() const {
    ThreadRanksOptions options = Options();
    options.slot_bytes = 4096;
    options.slots = 2;
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, HostCommunicatorTest, Combine(Values(2, 3, 4), Bool()), [](const auto& info) {
  return std::to_string(std::get<0>(info.param)) + (std::get<1>(info.param) ? "Rendezvous" : "Buffered");
});

TEST_P(HostCommunicatorTest, AllGatherJoinsThePartsOfTheRanksBitForBit) {
  RunRanks(
      ranks(),
      [&](ThreadRank& rank) {
        for (const at::ScalarType dtype : kMoved)
          for (const std::vector<int64_t>& rows : RowTables(ranks()))
            for (const int64_t dim : {0, 1, 2}) {
              std::vector<at::Tensor> parts;
              for (const int r : c10::irange(ranks())) {
                std::vector<int64_t> shape = {4, 3, 5};
                shape[dim] = rows[r];
                parts.push_back(RandomBits(shape, dtype, r));
              }
              const at::Tensor whole = rank.world().AllGather(parts[rank.rank()], rows, dim);
              EXPECT_TRUE(SameBits(whole, at::cat(parts, dim))) << dtype << " rows " << rows << " dim " << dim;
            }
      },
      Options());
}

TEST_P(HostCommunicatorTest, AllToAllDeliversUnevenPartsBitForBit) {
  RunRanks(
      ranks(),
      [&](ThreadRank& rank) {
        const int self = rank.rank();
        // Rank i sends (2 i + 3 j) mod 5 rows to rank j, which may be none.
        const auto part = [](int from, int to, at::ScalarType dtype) {
          return RandomBits({(2 * from + 3 * to) % 5, 3}, dtype, 10 * from + to);
        };
        for (const at::ScalarType dtype : kMoved) {
          std::vector<at::Tensor> send;
          std::vector<std::vector<int64_t>> shapes;
          for (const int r : c10::irange(ranks())) {
            send.push_back(part(self, r, dtype));
            shapes.push_back(part(r, self, dtype).sizes().vec());
          }
          const std::vector<at::Tensor> received = rank.world().AllToAll(send, shapes);
          for (const int r : c10::irange(ranks()))
            EXPECT_TRUE(SameBits(received[r], part(r, self, dtype))) << dtype << " from " << r;
        }
      },
      Options());
}

TEST_P(HostCommunicatorTest, BroadcastGivesEveryRankTheTensorOfTheRoot) {
  RunRanks(
      ranks(),
      [&](ThreadRank& rank) {
        for (const at::ScalarType dtype : kMoved)
          for (const int root : c10::irange(ranks())) {
            at::Tensor tensor = RandomBits({7, 3}, dtype, rank.rank());
            rank.world().Broadcast(tensor, root);
            EXPECT_TRUE(SameBits(tensor, RandomBits({7, 3}, dtype, root)));
          }
      },
      Options());
}

TEST_P(HostCommunicatorTest, SendAndRecvKeepTheOrderOfEachPair) {
  RunRanks(
      ranks(),
      [&](ThreadRank& rank) {
        for (const at::ScalarType dtype : kMoved)
          for (const int from : c10::irange(ranks()))
            for (const int to : c10::irange(ranks()))
              for (const int64_t rows : {3, 0, 5}) {
                if (from == to) continue;
                const at::Tensor sent = RandomBits({rows, 2}, dtype, 10 * from + rows);
                if (rank.rank() == from) rank.world().Send(sent, to);
                if (rank.rank() != to) continue;
                at::Tensor received = at::empty({rows, 2}, dtype);
                rank.world().Recv(received, from);
                EXPECT_TRUE(SameBits(received, sent));
              }
      },
      Options());
}

TEST_P(HostCommunicatorTest, ShiftMovesLargeTensorsInACircle) {
  RunRanks(
      ranks(),
      [&](ThreadRank& rank) {
        const int next = (rank.rank() + 1) % ranks(), previous = (rank.rank() + ranks() - 1) % ranks();
        at::Tensor received = at::empty({50 + previous, 1000}, at::kFloat);
        rank.world().Shift(RandomBits({50 + rank.rank(), 1000}, at::kFloat, rank.rank()), next, received, previous);
        EXPECT_TRUE(SameBits(received, RandomBits({50 + previous, 1000}, at::kFloat, previous)));
      },
      SmallSlots());
}

TEST_P(HostCommunicatorTest, AnExchangeInTwoHalvesLeavesOtherGroupsFree) {
  ThreadRanksOptions options = SmallSlots();
  HostGroup reversed{.name = "reversed"};
  for (const int r : c10::irange(ranks())) reversed.ranks.push_back(ranks() - 1 - r);
  options.groups = {reversed};
  RunRanks(
      ranks(),
      [&](ThreadRank& rank) {
        const std::unique_ptr<Communicator> other = rank.Join("reversed");
        EXPECT_EQ(other->rank(), ranks() - 1 - rank.rank());
        const int next = (rank.rank() + 1) % ranks(), previous = (rank.rank() + ranks() - 1) % ranks();
        const at::Tensor sent = at::full({20000}, rank.rank(), at::kInt);
        at::Tensor received = at::empty({20000}, at::kInt);
        for (const int round : c10::irange(5)) {
          rank.world().Start(std::array{Transfer::Send(sent, next), Transfer::Receive(received, previous)});
          at::Tensor sum = at::full({3000}, other->rank() + round, at::kLong);
          other->Sum(sum, sum);
          EXPECT_TRUE(at::equal(sum, at::full({3000}, ranks() * (ranks() - 1) / 2 + round * ranks(), at::kLong)));
          rank.world().Finish();
          EXPECT_TRUE(at::equal(received, at::full({20000}, previous, at::kInt)));
        }
      },
      options);
}

TEST_P(HostCommunicatorTest, TensorsLargerThanAllSlotsArriveWhole) {
  RunRanks(
      ranks(),
      [&](ThreadRank& rank) {
        const auto tensors = AllTensors(ranks(), {9, 1001}, at::kFloat);  // parts of 36 KB, slots of 8 KB in total
        const std::vector<std::vector<int64_t>> shapes(ranks(), {9, 1001});
        const std::vector<at::Tensor> received = rank.world().AllToAll(tensors[rank.rank()], shapes);
        for (const int r : c10::irange(ranks())) EXPECT_TRUE(SameBits(received[r], tensors[r][rank.rank()]));
        const std::vector<int64_t> rows(ranks(), 9);
        std::vector<at::Tensor> parts;
        for (const int r : c10::irange(ranks())) parts.push_back(tensors[r][0]);
        EXPECT_TRUE(SameBits(rank.world().AllGather(parts[rank.rank()], rows), at::cat(parts)));
      },
      SmallSlots());
}

TEST_P(HostCommunicatorTest, StridedTensorsAreSentAndFilled) {
  RunRanks(
      ranks(),
      [&](ThreadRank& rank) {
        for (const bool runs : {true, false}) {
          const auto view = [runs](const at::Tensor& whole) {
            return runs ? whole.narrow(1, 2, 3) : whole.transpose(0, 2).slice(0, 0, 24, 2);
          };
          std::vector<at::Tensor> send, receive, expected;
          for (const int r : c10::irange(ranks())) {
            send.push_back(view(RandomBits({5, 6, 24}, at::kFloat, 10 * rank.rank() + r)));
            receive.push_back(view(at::zeros({5, 6, 24}, at::kFloat)));
            expected.push_back(view(RandomBits({5, 6, 24}, at::kFloat, 10 * r + rank.rank())));
          }
          rank.world().AllToAll(send, receive);
          for (const int r : c10::irange(ranks())) EXPECT_TRUE(SameBits(receive[r], expected[r])) << runs;
        }
      },
      Options());
}

TEST_P(HostCommunicatorTest, AllReduceIsTheSumInRankOrderOnEveryRank) {
  for (const int64_t count : {0, 1, 3, 1000, 70001}) {
    RunRanks(
        ranks(),
        [&](ThreadRank& rank) {
          for (const at::ScalarType dtype : kSummed) {
            std::vector<at::Tensor> parts;
            for (const int r : c10::irange(ranks())) parts.push_back(RandomNumbers({count}, dtype, r));
            at::Tensor sum = parts[rank.rank()].clone();
            rank.world().Sum(sum, sum);
            EXPECT_TRUE(SameBits(sum, SumInRankOrder(parts))) << dtype << " " << count;
          }
        },
        SmallSlots());
  }
}

TEST_P(HostCommunicatorTest, ASumGoesToAnotherBufferOrOverItsOwn) {
  RunRanks(
      ranks(),
      [&](ThreadRank& rank) {
        for (const int64_t count : {0, 5, 3000, 70001}) {
          std::vector<at::Tensor> parts;
          for (const int r : c10::irange(ranks())) parts.push_back(RandomNumbers({count}, at::kDouble, r));
          const at::Tensor own = parts[rank.rank()], in = own.clone(), out = at::empty_like(in);
          rank.world().Sum(in, out);
          EXPECT_TRUE(SameBits(out, SumInRankOrder(parts))) << count;
          EXPECT_TRUE(SameBits(in, own)) << count;
          rank.world().Sum(in, in);
          EXPECT_TRUE(SameBits(in, out)) << count;
        }
      },
      Options());
}

TEST_P(HostCommunicatorTest, AnEvenGatherFillsTheBufferOfTheCaller) {
  RunRanks(
      ranks(),
      [&](ThreadRank& rank) {
        const at::Tensor out = at::empty({ranks() * 2, 3, 5}, at::kFloat);
        const void* const memory = out.data_ptr();
        for (const int round : c10::irange(3)) {
          std::vector<at::Tensor> parts;
          for (const int r : c10::irange(ranks())) parts.push_back(RandomBits({2, 3, 5}, at::kFloat, 10 * round + r));
          rank.world().Gather(parts[rank.rank()], out);
          EXPECT_TRUE(SameBits(out, at::cat(parts)));
        }
        EXPECT_EQ(out.data_ptr(), memory);
      },
      Options());
}

// Every rank sends several pieces, one of them empty, to every other rank in one exchange.
TEST_P(HostCommunicatorTest, AnExchangeMovesAllItsTransfersAndKeepsTheirOrder) {
  const auto piece = [](int from, int to, int i) {
    return RandomBits({(from + 2 * to + 3 * i) % 4, 700}, at::kFloat, 100 * from + 10 * to + i);
  };
  RunRanks(
      ranks(),
      [&](ThreadRank& rank) {
        for (const bool in_two_halves : {false, true}) {
          std::vector<Transfer> transfers;
          for (const int i : c10::irange(3)) {
            for (const int r : c10::irange(ranks())) {
              if (r == rank.rank()) continue;
              transfers.push_back(Transfer::Send(piece(rank.rank(), r, i), r));
              transfers.push_back(Transfer::Receive(at::empty_like(piece(r, rank.rank(), i)), r));
            }
          }
          if (in_two_halves) {
            rank.world().Start(transfers);
            EXPECT_THROW(rank.world().Barrier(), c10::Error);
            rank.world().Finish();
          } else {
            rank.world().Exchange(transfers);
          }
          size_t next = 0;
          for (const int i : c10::irange(3)) {
            for (const int r : c10::irange(ranks())) {
              if (r == rank.rank()) continue;
              EXPECT_TRUE(SameBits(transfers[next + 1].piece, piece(r, rank.rank(), i))) << r << " " << i;
              next += 2;
            }
          }
        }
      },
      Options());
}

TEST_P(HostCommunicatorTest, ReduceScatterGivesEachRankItsRowsOfTheSum) {
  RunRanks(
      ranks(),
      [&](ThreadRank& rank) {
        for (const at::ScalarType dtype : kSummed)
          for (const std::vector<int64_t>& rows : RowTables(ranks()))
            for (const int64_t dim : {0, 1}) {
              const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
              std::vector<int64_t> shape = {401, 401};
              shape[dim] = total;
              std::vector<at::Tensor> wholes;
              for (const int r : c10::irange(ranks())) wholes.push_back(RandomNumbers(shape, dtype, r));
              const at::Tensor local = rank.world().ReduceScatterSum(wholes[rank.rank()], rows, dim);
              EXPECT_TRUE(SameBits(local, RankParts(SumInRankOrder(wholes), rows, dim)[rank.rank()])) << dtype;
            }
      },
      SmallSlots());
}

TEST_P(HostCommunicatorTest, NoRankLeavesABarrierBeforeAllHaveCome) {
  std::atomic<int> arrived = 0;
  RunRanks(
      ranks(),
      [&](ThreadRank& rank) {
        for (const int round : c10::irange(1, 200)) {
          ++arrived;
          rank.world().Barrier();
          EXPECT_GE(arrived, round * ranks());
        }
      },
      Options());
}

TEST_P(HostCommunicatorTest, CountsTheBytesThatLeaveARank) {
  RunRanks(
      ranks(),
      [&](ThreadRank& rank) {
        const int64_t others = ranks() - 1, self = rank.rank(), next = (self + 1) % ranks();
        Communicator& world = rank.world();
        const std::vector<int64_t> rows = RowTables(ranks())[0];
        const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});

        world.AllGather(at::zeros({rows[self], 2}), rows);
        EXPECT_EQ(world.count(Collective::kAllGather), (CommCount{1, rows[self] * 8 * others}));

        world.ReduceScatterSum(at::zeros({total, 2}), rows);
        EXPECT_EQ(world.count(Collective::kReduceScatter), (CommCount{1, (total - rows[self]) * 8}));

        at::Tensor sum = at::zeros({12 * ranks()}, at::kDouble);
        world.Sum(sum, sum);
        world.Sum(sum, sum);
        EXPECT_EQ(world.count(Collective::kSum), (CommCount{2, 2 * 2 * others * 12 * 8}));

        const std::vector<std::vector<int64_t>> shapes(ranks(), {3});
        world.AllToAll(std::vector<at::Tensor>(ranks(), at::zeros({3}, at::kByte)), shapes);
        EXPECT_EQ(world.count(Collective::kAllToAll), (CommCount{1, 3 * others}));

        world.Broadcast(sum, 1);
        EXPECT_EQ(world.count(Collective::kBroadcast), (CommCount{1, self == 1 ? sum.numel() * 8 * others : 0}));

        at::Tensor received = at::zeros({5}, at::kInt);
        world.Shift(at::zeros({5}, at::kInt), next, received, (self + ranks() - 1) % ranks());
        EXPECT_EQ(world.count(Collective::kShift), (CommCount{1, 20}));

        if (self == 0) world.Send(received, 1);
        if (self == 1) world.Recv(received, 0);
        EXPECT_EQ(world.count(Collective::kSend), (CommCount{self == 0, self == 0 ? 20 : 0}));
        EXPECT_EQ(world.count(Collective::kRecv), (CommCount{self == 1, 0}));
      },
      Options());
}

TEST(HostGroupsTest, GroupsOfOneNameWorkApartFromEachOther) {
  RunRanks(4,
           [](ThreadRank& rank) {
             const std::unique_ptr<Communicator> row = rank.Join("row"), column = rank.Join("column"),
                                                 none = rank.Join("none");
             EXPECT_EQ(none->size(), 1);
             for (int round = 0; round < 50; ++round) {
               at::Tensor sum = at::full({100}, 1 << (2 * rank.rank()), at::kLong);
               row->Sum(sum, sum);
               EXPECT_EQ(sum[99].item<int64_t>(), rank.rank() < 2 ? 1 + 4 : 16 + 64);
               column->Sum(sum, sum);
               EXPECT_EQ(sum[0].item<int64_t>(), 85);
             }
           },
           {.groups = {{"row", {0, 1}}, {"row", {2, 3}}, {"column", {0, 2}}, {"column", {1, 3}}}});
}

TEST(SingleRankTest, EveryCollectiveIsTheIdentity) {
  SingleRank one;
  at::Tensor x = at::arange(6, at::kInt).view({3, 2}), y = at::empty_like(x);
  EXPECT_TRUE(one.AllGather(x, {3}).is_same(x));
  at::Tensor numbers = x.to(at::kFloat);
  EXPECT_TRUE(one.ReduceScatterSum(numbers, {2}, 1).is_same(numbers));
  one.Sum(numbers, numbers);
  EXPECT_TRUE(at::equal(numbers, x.to(at::kFloat)));
  EXPECT_TRUE(at::equal(one.AllToAll({x}, {{3, 2}})[0], x));
  one.Broadcast(x, 0);
  one.Barrier();
  one.Shift(x, 0, y, 0);
  EXPECT_TRUE(at::equal(x, y));
  for (int kind = 0; kind < kCollectives; ++kind) EXPECT_EQ(one.count(static_cast<Collective>(kind)).bytes, 0);
}

}  // namespace
}  // namespace tessera::parallel
