#include "tests/support/cuda_emulation/cuda_emulation.h"

#include <cuda_bf16.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tessera::cuda_emulation {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr Order kAll[] = {Order::kAscending, Order::kDescending, Order::kRandom};

TEST(CudaEmulation, RunsEveryThreadOfEveryBlockOnce) {
  for (const Order order : kAll) {
    std::vector<int> runs(size_t{3} * 2 * 64);
    RunKernel(order, {3, 2, 1}, 64, 0,
              [&] { ++runs[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x]; });
    EXPECT_THAT(runs, Each(1));
  }
}

TEST(CudaEmulation, RunsWarpsAndLanesInTheOrderThatIsAskedFor) {
  const auto first_and_last = [](Order order) {
    std::vector<unsigned> threads;
    RunKernel(order, {1, 1, 1}, 96, 0, [&] { threads.push_back(threadIdx.x); });
    return std::vector<unsigned>{threads.front(), threads.back()};
  };
  EXPECT_THAT(first_and_last(Order::kAscending), ElementsAre(0, 95));
  EXPECT_THAT(first_and_last(Order::kDescending), ElementsAre(95, 0));
}

TEST(CudaEmulation, HoldsABlockAtItsBarrierUntilAllThreadsAreThere) {
  for (const Order order : kAll) {
    int arrived = 0;
    std::vector<int> seen;
    RunKernel(order, {1, 1, 1}, 128, 0, [&] {
      ++arrived;
      __syncthreads();
      seen.push_back(arrived);
    });
    EXPECT_THAT(seen, Each(128));
  }
}

TEST(CudaEmulation, ShufflesWhatTheLanesOfAWarpBring) {
  for (const Order order : kAll) {
    std::vector<double> other(64);
    std::vector<unsigned> first(64), below(64);
    RunKernel(order, {1, 1, 1}, 64, 0, [&] {
      const unsigned thread = threadIdx.x;
      other[thread] = __shfl_xor_sync(kernels::cuda::kWholeWarp, thread + 0.5, 1);
      first[thread] = __shfl_sync(kernels::cuda::kWholeWarp, thread, 0);
      below[thread] = __shfl_down_sync(kernels::cuda::kWholeWarp, thread, 8);
    });
    for (unsigned thread = 0; thread < 64; ++thread) {
      EXPECT_EQ(other[thread], (thread ^ 1) + 0.5);
      EXPECT_EQ(first[thread], thread / 32 * 32);
      EXPECT_EQ(below[thread], thread % 32 < 24 ? thread + 8 : thread);
    }
  }
}

// The warps add to one number without an atomic operation. The sum is right as long as no warp loses its turn in
// between.
TEST(CudaEmulation, ShowsInTheRandomOrderAloneAnUpdateThatAShuffleInterrupts) {
  for (const Order order : kAll) {
    unsigned sum = 0;
    RunKernel(order, {1, 1, 1}, 512, 0, [&] {
      const unsigned before = sum;
      const unsigned one = __shfl_sync(kernels::cuda::kWholeWarp, 1u, 0);
      if (threadIdx.x % 32 == 0) sum = before + one;
    });
    EXPECT_EQ(sum == 16, order != Order::kRandom) << sum;
  }
}

TEST(CudaEmulation, BeginsEveryBlockWithGarbageInSharedMemory) {
  std::vector<float> found;
  RunKernel(Order::kAscending, {2, 1, 1}, 32, sizeof(float), [&] {
    auto* shared = kernels::cuda::SharedMemory<float>();
    if (threadIdx.x == 0) found.push_back(*shared);
    __syncwarp();
    *shared = 1;
  });
  ASSERT_EQ(found.size(), 2);
  EXPECT_GT(found[0], 1e38);
  EXPECT_GT(found[1], 1e38);
}

TEST(CudaEmulation, ReportsABarrierThatNotAllThreadsReach) {
  const auto one_warp_leaves = [] {
    RunKernel(Order::kAscending, {1, 1, 1}, 64, 0, [] {
      if (threadIdx.x < 32) __syncthreads();
    });
  };
  EXPECT_THAT(one_warp_leaves, ThrowsMessage<std::logic_error>(HasSubstr("not all its threads reach")));
  const auto one_lane_leaves = [] {
    RunKernel(Order::kAscending, {1, 1, 1}, 32, 0, [] {
      if (threadIdx.x != 5) __syncwarp();
    });
  };
  EXPECT_THAT(one_lane_leaves, ThrowsMessage<std::logic_error>(HasSubstr("threads of one warp")));
  const auto shuffle_with_barrier = [] {
    RunKernel(Order::kAscending, {1, 1, 1}, 32, 0, [] {
      if (threadIdx.x < 16) {
        __syncwarp();
      } else {
        __shfl_xor_sync(kernels::cuda::kWholeWarp, 1, 1);
      }
    });
  };
  EXPECT_THAT(shuffle_with_barrier, ThrowsMessage<std::logic_error>(HasSubstr("threads of one warp")));
}

TEST(CudaEmulation, ReportsWhatAGpuWouldNotLaunch) {
  const auto run = [](dim3 grid, unsigned threads, size_t shared_bytes) {
    return [=] { RunKernel(Order::kAscending, grid, threads, shared_bytes, [] {}); };
  };
  EXPECT_THAT(run({1, 1, 1}, 48, 0), ThrowsMessage<std::logic_error>(HasSubstr("a block of 48 threads")));
  EXPECT_THAT(run({1, 1, 1}, 1056, 0), ThrowsMessage<std::logic_error>(HasSubstr("a block of 1056 threads")));
  EXPECT_THAT(run({0, 1, 1}, 32, 0), ThrowsMessage<std::logic_error>(HasSubstr("a grid of 0 x 1 x 1")));
  EXPECT_THAT(run({1, 65536, 1}, 32, 0), ThrowsMessage<std::logic_error>(HasSubstr("a grid of 1 x 65536 x 1")));
  EXPECT_THAT(run({1, 1, 1}, 32, 49153), ThrowsMessage<std::logic_error>(HasSubstr("shared memory")));
}

TEST(CudaEmulation, ReportsAVectorAccessThatIsNotAligned) {
  alignas(16) float row[8] = {};
  const auto load = [&](const float* from) {
    return [=] {
      RunKernel(Order::kAscending, {1, 1, 1}, 32, 0, [=] {
        float chunk[4];
        kernels::cuda::LoadNumbers<true>(from, 0, 4, chunk);
      });
    };
  };
  load(row)();
  EXPECT_THAT(load(row + 1), ThrowsMessage<std::logic_error>(HasSubstr("not aligned to 16 bytes")));
}

TEST(CudaEmulation, CountsLaunchesAndBarriers) {
  const Counts before = Counted();
  RunKernel(Order::kAscending, {3, 1, 1}, 64, 0, [] { __syncthreads(); });
  EXPECT_EQ(Counted().launches - before.launches, 1);
  EXPECT_EQ(Counted().barriers - before.barriers, 3);
}

// The expected values follow from the definition of the format: 8 bits of precision, ties to even.
TEST(CudaEmulation, RoundsToBf16AsTheFormatSays) {
  EXPECT_EQ(__float2bfloat16_rn(1).bits, 0x3f80);
  EXPECT_EQ(__float2bfloat16_rn(1 + 1.0f / 256).bits, 0x3f80);  // halfway between 1 and 1 + 1/128: rounds to even
  EXPECT_EQ(__float2bfloat16_rn(1 + 3.0f / 256).bits, 0x3f82);
  EXPECT_EQ(__float2bfloat16_rn(1 + 1.01f / 256).bits, 0x3f81);
  EXPECT_EQ(__float2bfloat16_rn(-2).bits, 0xc000);
  EXPECT_EQ(__float2bfloat16_rn(3.4028234e38f).bits, 0x7f80);  // the largest fp32 rounds to infinity
  EXPECT_EQ(__float2bfloat16_rn(__builtin_nanf("")).bits, 0x7fff);
  EXPECT_EQ(__bfloat162float({0x4049}), 3.140625f);
}

}  // namespace
}  // namespace tessera::cuda_emulation
