#include "kernels/cpu/parallel.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace tessera::kernels::cpu {
namespace {

using Range = PieceShares::Range;

void ExpectRange(const Range& range, int64_t first, int64_t last) {
  EXPECT_EQ(range.first, first);
  EXPECT_EQ(range.last, last);
}

TEST(PieceSharesTest, AThreadTakesItsOwnFromTheFrontAndThenOthersFromTheBack) {
  PieceShares shares(10, 2);
  ExpectRange(shares.Take(0, 2), 0, 2);
  ExpectRange(shares.Take(0, 9), 2, 5);
  ExpectRange(shares.Take(0, 9), 9, 10);
  ExpectRange(shares.Take(1, 1), 5, 6);
  ExpectRange(shares.Take(0, 9), 8, 9);
}

TEST(PieceSharesTest, TheLastPieceOfAShareIsItsThreads) {
  PieceShares shares(4, 2);
  ExpectRange(shares.Take(1, 2), 2, 4);
  ExpectRange(shares.Take(1, 1), 1, 2);
  EXPECT_TRUE(shares.Take(1, 1).empty());
  ExpectRange(shares.Take(0, 1), 0, 1);
  EXPECT_TRUE(shares.Take(0, 1).empty());
}

TEST(PieceSharesTest, EveryPieceIsTakenOnceWhicheverThreadIsFast) {
  constexpr int kThreads = 4;
  for (const int64_t count : {1, 3, 5, 64, 1001}) {
    for (const int64_t most : {1, 3, 100}) {
      PieceShares shares(count, kThreads);
      std::vector<std::atomic<int>> taken(static_cast<size_t>(count));
      std::vector<std::thread> threads;
      for (int thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&, thread] {
          for (Range range = shares.Take(thread, most); !range.empty(); range = shares.Take(thread, most)) {
            for (int64_t piece = range.first; piece < range.last; ++piece) ++taken[static_cast<size_t>(piece)];
            if (thread % 2 == 0) std::this_thread::yield();
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (const std::atomic<int>& times : taken) EXPECT_EQ(times, 1) << count << " by " << most;
    }
  }
}

class ShareOutTest : public ::testing::TestWithParam<int> {
 protected:
  ShareOutTest() : before_(at::get_num_threads()) { at::set_num_threads(GetParam()); }
  ~ShareOutTest() override { at::set_num_threads(before_); }

 private:
  const int before_;
};

TEST_P(ShareOutTest, DoesEveryPieceOnce) {
  for (const int64_t count : {0, 1, 2, 63, 500}) {
    std::vector<std::atomic<int>> done(static_cast<size_t>(count));
    ShareOut(count, [&](const TakePieces& take) {
      for (Range range = take(1); !range.empty(); range = take(1)) ++done[static_cast<size_t>(range.first)];
    });
    for (const std::atomic<int>& times : done) EXPECT_EQ(times, 1);
  }
}

TEST_P(ShareOutTest, InAPieceOfWorkIsThatThreadsAlone) {
  constexpr int64_t kOuter = 4, kInner = 7;
  std::atomic<int> bodies = 0, pieces = 0;
  ShareOut(kOuter, [&](const TakePieces& take_outer) {
    while (!take_outer(1).empty()) {
      ShareOut(kInner, [&](const TakePieces& take) {
        ++bodies;
        while (!take(1).empty()) ++pieces;
      });
    }
  });
  EXPECT_EQ(pieces, kOuter * kInner);
  EXPECT_EQ(bodies, kOuter);
}

TEST_P(ShareOutTest, BringsAnExceptionBack) {
  EXPECT_THROW(ShareOut(9, [](const TakePieces&) { throw std::runtime_error("no"); }), std::runtime_error);
}

INSTANTIATE_TEST_SUITE_P(Threads, ShareOutTest, ::testing::Values(1, 2, 5));

}  // namespace
}  // namespace tessera::kernels::cpu
