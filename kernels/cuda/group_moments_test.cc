#include <gtest/gtest.h>

#include "tests/support/cuda_emulation/group_moments_runs.h"

namespace tessera::kernels::cuda {
namespace {

// Small versions of the autoencoder's groups, whole and as bands, whose planes are apart in memory; one whole slice, a
// partial slice and several slices; tails of every length; rows far from zero; a whole image as one group, as in
// guidance.
constexpr MomentsCase kCases[] = {{1, 4, 4, 256},
                                  {2, 2, 2, 64},
                                  {1, 2, 4, 1024},
                                  {1, 1, 1, 65536},
                                  {1, 1, 3, 32768},
                                  {1, 1, 1, 40000},
                                  {1, 1, 2, 20001},
                                  {1, 2, 2, 256, 768},
                                  {1, 32, 4, 64},
                                  {1, 32, 2, 72},
                                  {2, 3, 5, 88},
                                  {1, 1, 1, 2},
                                  {1, 1, 1, 3},
                                  {1, 1, 2, 5},
                                  {2, 2, 1, 7},
                                  {1, 3, 1, 8},
                                  {2, 1, 3, 9},
                                  {1, 2, 1, 31},
                                  {1, 2, 2, 33},
                                  {1, 1, 4, 100},
                                  {1, 1, 1, 257},
                                  {1, 1, 1, 2047},
                                  {1, 1, 1, 2049},
                                  {2, 2, 2, 64, 1},
                                  {2, 2, 2, 64, 0, 1},
                                  {2, 2, 2, 72, 3, 2},
                                  {2, 2, 2, 64, 8, 8, 24},
                                  {2, 2, 2, 64, 0, 0, 16},
                                  {1, 1, 2, 512, 0, 0, 0, 100},
                                  {1, 2, 1, 4096, 0, 0, 0, -30},
                                  {0, 2, 2, 64},
                                  {1, 1, 1, 16384}};

template <typename T>
class GroupMomentsKernel : public ::testing::Test {};
TYPED_TEST_SUITE(GroupMomentsKernel, KernelNumbers);

TYPED_TEST(GroupMomentsKernel, EqualsItsDefinitionInEveryOrderOfWarps) {
  for (const MomentsCase& moments : kCases) {
    SCOPED_TRACE(testing::Message() << "case " << &moments - kCases);
    GroupMomentsRun<TypeParam> run(moments), other(moments);
    ASSERT_EQ(run.Launch(kOrders[0]), cudaSuccess);
    EXPECT_LE(run.Worst(), 1);
    for (const cuda_emulation::Order order : kOtherOrders) {
      ASSERT_EQ(other.Launch(order), cudaSuccess);
      EXPECT_TRUE(run.SameBits(other)) << "the order of the warps shows";
    }
  }
}

TYPED_TEST(GroupMomentsKernel, GivesAnImageTheSameMomentsAloneAndInABatch) {
  GroupMomentsRun<TypeParam> alone({.images = 1, .groups = 2, .channels = 2, .plane = 20000});
  GroupMomentsRun<TypeParam> batch({.images = 2, .groups = 2, .channels = 2, .plane = 20000});
  ASSERT_EQ(alone.Launch(kOrders[0]), cudaSuccess);
  ASSERT_EQ(batch.Launch(kOrders[0]), cudaSuccess);
  for (size_t group = 0; group < 2; ++group) {  // the first image has the same random numbers
    EXPECT_EQ(alone.means()[group], batch.means()[group]);
    EXPECT_EQ(alone.squares()[group], batch.squares()[group]);
  }
}

// Channels of the autoencoder's levels with one whole slice, a partial slice and several slices; bands, whose images
// are apart in memory; channels that are not whole chunks; more pixels than threads, and fewer.
constexpr MomentsCase kPixelCases[] = {{1, 32, 4, 700},
                                       {1, 32, 16, 300},
                                       {2, 32, 8, 129},
                                       {1, 32, 16, 3, 0, 0, 512},
                                       {2, 4, 4, 64, 0, 0, 24},
                                       {1, 4, 2, 1025},
                                       {1, 2, 3, 50},
                                       {2, 3, 5, 31, 1, 3, 7},
                                       {1, 1, 1, 2000},
                                       {1, 4, 16, 5, 8},
                                       {1, 2, 4, 1},
                                       {1, 8, 4, 512, 0, 0, 0, 100},
                                       {1, 8, 4, 4096, 0, 0, 0, -30},
                                       {0, 2, 2, 64}};

TYPED_TEST(GroupMomentsKernel, EqualsItsDefinitionWithChannelsLast) {
  for (const MomentsCase& moments : kPixelCases) {
    SCOPED_TRACE(testing::Message() << "case " << &moments - kPixelCases);
    GroupMomentsRun<TypeParam, true> run(moments), other(moments);
    ASSERT_EQ(run.Launch(kOrders[0]), cudaSuccess);
    EXPECT_LE(run.Worst(), 1);
    for (const cuda_emulation::Order order : kOtherOrders) {
      ASSERT_EQ(other.Launch(order), cudaSuccess);
      EXPECT_TRUE(run.SameBits(other)) << "the order of the warps shows";
    }
  }
}

TYPED_TEST(GroupMomentsKernel, WithChannelsLastAnImageHasTheSameMomentsAloneAndInABatch) {
  GroupMomentsRun<TypeParam, true> alone({.images = 1, .groups = 4, .channels = 4, .plane = 5000});
  GroupMomentsRun<TypeParam, true> batch({.images = 2, .groups = 4, .channels = 4, .plane = 5000});
  ASSERT_EQ(alone.Launch(kOrders[0]), cudaSuccess);
  ASSERT_EQ(batch.Launch(kOrders[0]), cudaSuccess);
  for (size_t group = 0; group < 4; ++group) {
    EXPECT_EQ(alone.means()[group], batch.means()[group]);
    EXPECT_EQ(alone.squares()[group], batch.squares()[group]);
  }
}

TYPED_TEST(GroupMomentsKernel, WithChannelsLastMoreChannelsThanABlockTakesAreRefused) {
  GroupMomentsRun<TypeParam, true> run({.images = 1, .groups = 2, .channels = kMostMomentChannels, .plane = 2});
  EXPECT_EQ(run.Launch(kOrders[0]), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace tessera::kernels::cuda
