#include <gtest/gtest.h>

#include "tests/support/cuda_emulation/residual_norm_runs.h"

namespace tessera::kernels::cuda {
namespace {

// The parts that LayerNormModulate, GatedResidual, GatedResidualNormModulate with and without a gate, ResidualNorm and
// RmsNorm use.
constexpr NormParts kParts[] = {{.then = Scaling::kModulate},
                                {.y = true, .gate = true, .norm = NormKind::kNone},
                                {.y = true, .gate = true, .then = Scaling::kModulate},
                                {.y = true, .then = Scaling::kModulate},
                                {.y = true, .then = Scaling::kAffine},
                                {.norm = NormKind::kRootMeanSquare, .then = Scaling::kWeight},
                                {.then = Scaling::kNone, .mean = 100}};

struct Shape {
  int64_t images, tokens, channels, gap = 0, offset = 0, image_gap = 0;
};

// The widths of the models and of their heads; rows shorter than a warp and than a chunk; tails of every length; rows
// that are apart; rows that do not begin at a chunk; images that are apart; no rows at all; the longest row of each
// type.
constexpr Shape kShapes[] = {{1, 2, 3072},
                             {2, 1, 1152},
                             {1, 2, 1408},
                             {1, 2, 1536},
                             {1, 1, 2432},
                             {1, 1, 4096},
                             {2, 3, 64},
                             {1, 5, 48},
                             {3, 2, 8},
                             {1, 1, 1},
                             {2, 2, 2},
                             {1, 3, 3},
                             {1, 2, 5},
                             {2, 1, 7},
                             {1, 3, 9},
                             {1, 2, 31},
                             {1, 2, 33},
                             {1, 2, 72},
                             {1, 2, 88},
                             {2, 2, 100},
                             {1, 1, 257},
                             {1, 1, 1153},
                             {2, 3, 64, 64},
                             {2, 2, 128, 8},
                             {1, 3, 64, 1},
                             {1, 3, 64, 0, 1},
                             {2, 2, 72, 3, 2},
                             {1, 2, 256, 4, 4},
                             {2, 2, 64, 0, 0, 16},
                             {2, 2, 96, 8, 8, 24},
                             {0, 4, 64},
                             {2, 0, 64},
                             {1, 1, 4095},
                             {1, 2, 768, 768},
                             {1, 1, 3080}};

template <typename T>
class ResidualNormKernel : public ::testing::Test {};
TYPED_TEST_SUITE(ResidualNormKernel, KernelNumbers);

template <typename T>
void ExpectTheDefinition(const Shape& shape, const NormParts& parts) {
  const typename Rows<T>::Layout layout{.images = shape.images,
                                        .tokens = shape.tokens,
                                        .channels = shape.channels,
                                        .gap = shape.gap,
                                        .offset = shape.offset,
                                        .image_gap = shape.image_gap};
  ResidualNormRun<T> run(layout, parts, 1), other(layout, parts, 1);
  ASSERT_EQ(run.Launch(kOrders[0]), cudaSuccess);
  EXPECT_LE(run.Worst(), 1);
  for (const cuda_emulation::Order order : kOtherOrders) {
    ASSERT_EQ(other.Launch(order), cudaSuccess);
    EXPECT_TRUE(run.SameBits(other)) << "the order of the warps shows";
  }
}

TYPED_TEST(ResidualNormKernel, EqualsItsDefinitionInEveryOrderOfWarps) {
  for (const Shape& shape : kShapes) {
    for (const NormParts& parts : kParts) {
      SCOPED_TRACE(testing::Message() << "images " << shape.images << ", tokens " << shape.tokens << ", channels "
                                      << shape.channels << ", gap " << shape.gap << ", offset " << shape.offset
                                      << ", parts " << &parts - kParts);
      ExpectTheDefinition<TypeParam>(shape, parts);
    }
  }
}

TYPED_TEST(ResidualNormKernel, QuantizesTheNormThatItWouldWrite) {
  for (const Shape& shape : kShapes) {
    for (const NormParts& parts : kParts) {
      const bool too_long = shape.channels > MaxQuantizedNormChannels(NumberTraits<TypeParam>::kNumber);
      if (parts.norm == NormKind::kNone || too_long) continue;
      SCOPED_TRACE(testing::Message() << "images " << shape.images << ", tokens " << shape.tokens << ", channels "
                                      << shape.channels << ", gap " << shape.gap << ", offset " << shape.offset
                                      << ", parts " << &parts - kParts);
      const typename Rows<TypeParam>::Layout layout{.images = shape.images,
                                                    .tokens = shape.tokens,
                                                    .channels = shape.channels,
                                                    .gap = shape.gap,
                                                    .offset = shape.offset,
                                                    .image_gap = shape.image_gap};
      ResidualNormRun<TypeParam> run(layout, parts, 1);
      ASSERT_EQ(run.Launch(kOrders[0]), cudaSuccess);
      EXPECT_TRUE(run.QuantizesExactly(kOrders[0]));
      EXPECT_TRUE(run.QuantizesExactly(kOtherOrders[1]));
      const bool multiplied = parts.norm == NormKind::kRootMeanSquare;
      EXPECT_TRUE(run.QuantizesExactly(kOrders[1], multiplied));
    }
  }
  ResidualNormRun<TypeParam> longest({.channels = MaxQuantizedNormChannels(NumberTraits<TypeParam>::kNumber)},
                                     kParts[2], 1);
  ASSERT_EQ(longest.Launch(kOrders[0]), cudaSuccess);
  EXPECT_TRUE(longest.QuantizesExactly(kOrders[0]));
}

TYPED_TEST(ResidualNormKernel, TakesTheLongestRowsAndRefusesLongerOnes) {
  const int64_t longest = MaxNormChannels(NumberTraits<TypeParam>::kNumber);
  ExpectTheDefinition<TypeParam>({1, 1, longest}, kParts[2]);
  ExpectTheDefinition<TypeParam>({1, 1, longest - 1}, kParts[2]);
  ResidualNormRun<TypeParam> run({.channels = longest + 1}, kParts[2], 1);
  EXPECT_EQ(run.Launch(kOrders[0]), cudaErrorInvalidValue);
}

TYPED_TEST(ResidualNormKernel, LaunchesOnceForAnyNumberOfRowsAndNotAtAllForNone) {
  const auto launches = [](int64_t images, int64_t tokens) {
    ResidualNormRun<TypeParam> run({.images = images, .tokens = tokens, .channels = 64}, kParts[2], 1);
    const int64_t before = cuda_emulation::Counted().launches;
    EXPECT_EQ(run.Launch(kOrders[0]), cudaSuccess);
    return cuda_emulation::Counted().launches - before;
  };
  EXPECT_EQ(launches(2, 3), 1);
  EXPECT_EQ(launches(0, 3), 0);
  EXPECT_EQ(launches(2, 0), 0);
}

}  // namespace
}  // namespace tessera::kernels::cuda
