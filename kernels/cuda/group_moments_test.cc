#include <gtest/gtest.h>

#include "tests/support/cuda_emulation/group_moments_runs.h"

namespace tessera::kernels::cuda {
namespace {

// Groups of the autoencoder's levels in small, whole and of bands, whose planes lie apart; slices that are whole, not
// whole and several; tails of every length; rows far from zero; a whole image as one group, as guidance has it.
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

TYPED_TEST(GroupMomentsKernel, EqualsItsDefinitionInBothOrdersOfWarps) {
  for (const MomentsCase& moments : kCases) {
    SCOPED_TRACE(testing::Message() << "case " << &moments - kCases);
    GroupMomentsRun<TypeParam> run(moments), other(moments);
    ASSERT_EQ(run.Launch(kOrders[0]), cudaSuccess);
    EXPECT_LE(run.Worst(), 1);
    ASSERT_EQ(other.Launch(kOrders[1]), cudaSuccess);
    EXPECT_TRUE(run.SameBits(other)) << "the order of the warps shows";
  }
}

TYPED_TEST(GroupMomentsKernel, GivesAnImageTheSameMomentsAloneAndInABatch) {
  GroupMomentsRun<TypeParam> alone({.images = 1, .groups = 2, .channels = 2, .plane = 20000});
  GroupMomentsRun<TypeParam> batch({.images = 2, .groups = 2, .channels = 2, .plane = 20000});
  ASSERT_EQ(alone.Launch(kOrders[0]), cudaSuccess);
  ASSERT_EQ(batch.Launch(kOrders[0]), cudaSuccess);
  for (size_t group = 0; group < 2; ++group) {  // the first image is of the same random numbers
    EXPECT_EQ(alone.means()[group], batch.means()[group]);
    EXPECT_EQ(alone.squares()[group], batch.squares()[group]);
  }
}

}  // namespace
}  // namespace tessera::kernels::cuda
