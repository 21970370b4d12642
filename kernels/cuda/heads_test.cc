#include <gtest/gtest.h>

#include "tests/support/cuda_emulation/heads_runs.h"

namespace tessera::kernels::cuda {
namespace {

constexpr auto kRms = HeadNormKind::kRootMeanSquare, kLayer = HeadNormKind::kLayer, kPlain = HeadNormKind::kNone;
constexpr auto kDense = HeadsPlace::kDense, kForRanks = HeadsPlace::kForRanks;

// The heads of FLUX.1 (24 of 128), SD3 (24 of 64), HunyuanDiT (16 of 88), PixArt and DiT (16 of 72) and smaller ones,
// as one part, two and three; heads narrower than a chunk, of odd width and wider than a warp; rows that are apart;
// rows that do not begin at a chunk; no rows at all.
constexpr HeadsCase kCases[] = {
    {1, 2, 1, 24, 128, 3, kRms, true},
    {1, 2, 1, 24, 64, 3, kRms, false},
    {1, 2, 1, 16, 88, 3, kLayer, true},
    {2, 1, 1, 16, 72, 3, kPlain, false},
    {2, 3, 1, 2, 128, 3, kRms, true},
    {2, 3, 1, 2, 64, 3, kRms, true},
    {2, 3, 1, 2, 88, 3, kLayer, true},
    {2, 3, 1, 2, 72, 3, kLayer, true},
    {2, 3, 2, 2, 128, 3, kRms, true, kForRanks},
    {2, 3, 4, 1, 64, 3, kRms, true, kForRanks},
    {2, 3, 2, 2, 88, 3, kLayer, true, kForRanks},
    {1, 5, 2, 3, 72, 3, kPlain, false, kForRanks},
    {2, 3, 2, 2, 128, 2, kRms, true, kForRanks},
    {2, 3, 1, 3, 64, 2, kRms, false},
    {2, 3, 1, 4, 128, 1, kRms, true},
    {2, 3, 1, 4, 88, 1, kLayer, true},
    {2, 3, 1, 4, 88, 1, kLayer, false},
    {1, 2, 1, 5, 72, 1, kPlain, true},
    {1, 1, 1, 1, 1, 3, kRms, false},
    {1, 2, 1, 3, 2, 3, kRms, true},
    {1, 2, 1, 3, 4, 3, kLayer, true},
    {2, 2, 1, 3, 6, 3, kRms, true},
    {2, 2, 1, 3, 7, 3, kRms, false},
    {2, 2, 1, 5, 8, 3, kRms, true},
    {2, 2, 1, 3, 16, 3, kLayer, true},
    {1, 3, 1, 2, 20, 3, kRms, true},
    {1, 2, 1, 2, 99, 3, kLayer, false},
    {1, 2, 1, 2, 130, 3, kRms, true},
    {1, 2, 1, 2, 160, 3, kRms, true},
    {1, 1, 1, 3, 256, 3, kLayer, true},
    {2, 2, 1, 2, 64, 3, kRms, true, kDense, 64},
    {2, 2, 1, 2, 128, 3, kRms, true, kDense, 128 * 24},
    {2, 2, 1, 2, 64, 3, kRms, true, kDense, 1},
    {2, 2, 1, 2, 72, 3, kLayer, true, kDense, 0, 1},
    {2, 2, 2, 2, 64, 3, kRms, true, kForRanks, 3, 5},
    {2, 2, 1, 40, 64, 3, kRms, true},
    {0, 2, 1, 2, 64, 3, kRms, true},
    {2, 0, 1, 2, 64, 3, kRms, true},
    {2, 2, 1, 0, 64, 3, kRms, true},
};

template <typename T>
class HeadsKernel : public ::testing::Test {};
TYPED_TEST_SUITE(HeadsKernel, KernelNumbers);

TYPED_TEST(HeadsKernel, EqualsItsDefinitionInEveryOrderOfWarps) {
  for (const HeadsCase& heads : kCases) {
    SCOPED_TRACE(testing::Message() << "case " << &heads - kCases);
    HeadsRun<TypeParam> run(heads, 1), other(heads, 1);
    ASSERT_EQ(run.Launch(kOrders[0]), cudaSuccess);
    EXPECT_LE(run.Worst(), 1);
    for (const cuda_emulation::Order order : kOtherOrders) {
      ASSERT_EQ(other.Launch(order), cudaSuccess);
      EXPECT_TRUE(run.SameBits(other)) << "the order of the warps shows";
    }
  }
}

TYPED_TEST(HeadsKernel, TakesTheWidestHeadsAndRefusesOthers) {
  const int widest = MaxHeadDim(NumberTraits<TypeParam>::kNumber);
  HeadsRun<TypeParam> run({.heads = 2, .head_dim = widest}, 1);
  EXPECT_EQ(run.Launch(kOrders[0]), cudaSuccess);
  EXPECT_LE(run.Worst(), 1);
  HeadsRun<TypeParam> wider({.heads = 2, .head_dim = widest + 2}, 1);
  EXPECT_EQ(wider.Launch(kOrders[0]), cudaErrorInvalidValue);
  HeadsRun<TypeParam> odd({.heads = 2, .head_dim = 63, .turns = true}, 1);
  EXPECT_EQ(odd.Launch(kOrders[0]), cudaErrorInvalidValue);
}

TYPED_TEST(HeadsKernel, LaunchesOnceForAllParts) {
  const int64_t before = cuda_emulation::Counted().launches;
  HeadsRun<TypeParam> run({.images = 2, .tokens = 3, .heads = 2}, 1);
  EXPECT_EQ(run.Launch(kOrders[0]), cudaSuccess);
  EXPECT_EQ(cuda_emulation::Counted().launches - before, 1);
}

}  // namespace
}  // namespace tessera::kernels::cuda
