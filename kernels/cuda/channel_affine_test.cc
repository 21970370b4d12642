#include "kernels/cuda/channel_affine.cuh"

#include <gtest/gtest.h>

#include "tests/support/cuda_emulation/kernel_runs.h"

namespace tessera::kernels::cuda {
namespace {

struct Shape {
  int64_t images, channels, plane, gap = 0, offset = 0, image_gap = 0;
};

// Small versions of the autoencoder's planes, whole and as bands that are apart in memory; tails of every length.
constexpr Shape kShapes[] = {{1, 4, 4096},
                             {2, 3, 1024},
                             {1, 2, 2048, 2048},
                             {2, 4, 256, 768},
                             {1, 128, 16},
                             {1, 1, 1},
                             {1, 2, 2},
                             {2, 3, 3},
                             {2, 2, 5},
                             {1, 3, 7},
                             {3, 1, 8},
                             {1, 2, 9},
                             {1, 2, 31},
                             {1, 2, 33},
                             {2, 2, 64},
                             {2, 2, 72},
                             {2, 2, 88},
                             {2, 2, 100},
                             {2, 2, 128},
                             {1, 1, 257},
                             {1, 1, 2047},
                             {1, 1, 2049},
                             {1, 1, 4097},
                             {2, 3, 64, 64},
                             {2, 3, 64, 1},
                             {2, 3, 64, 0, 1},
                             {2, 2, 72, 3, 2},
                             {2, 2, 64, 8, 8, 24},
                             {2, 2, 64, 0, 0, 16},
                             {0, 2, 64},
                             {2, 0, 64},
                             {2, 2, 0}};

// With kChannelsLast, a shape's planes are pixels, and its `plane` numbers are their channels.
template <typename T, bool kChannelsLast = false>
class AffineRun final {
 public:
  using W = WideOf<T>;

  AffineRun(const Shape& shape, bool silu)
      : silu_(silu),
        random_(1),
        x_({.images = shape.images,
            .tokens = shape.channels,
            .channels = shape.plane,
            .gap = shape.gap,
            .offset = shape.offset,
            .image_gap = shape.image_gap},
           0.5, 2, random_),
        factor_({.images = shape.images, .tokens = VectorsOf(shape), .channels = 1}, 1, 0.5, random_),
        offset_({.images = shape.images, .tokens = VectorsOf(shape), .channels = 1}, 0, 1, random_),
        y_({.images = shape.images, .tokens = shape.channels, .channels = shape.plane}) {}

  cudaError_t Launch(cuda_emulation::Order order) {
    const ConstRows rows = x_.View();
    if constexpr (kChannelsLast) {
      const PixelAffineArguments arguments{.number = NumberTraits<T>::kNumber,
                                           .x = {.data = rows.data,
                                                 .images = x_.layout().images,
                                                 .pixels = x_.layout().tokens,
                                                 .channels = x_.layout().channels,
                                                 .image_stride = rows.image_stride,
                                                 .pixel_stride = rows.token_stride},
                                           .factor = factor_.data(),
                                           .offset = offset_.data(),
                                           .silu = silu_,
                                           .y = y_.data()};
      return RunChannelAffine(arguments, EmulatedLauncher(order));
    } else {
      const ChannelAffineArguments arguments{.number = NumberTraits<T>::kNumber,
                                             .x = {.data = rows.data,
                                                   .images = x_.layout().images,
                                                   .channels = x_.layout().tokens,
                                                   .plane = x_.layout().channels,
                                                   .image_stride = rows.image_stride,
                                                   .channel_stride = rows.token_stride},
                                             .factor = factor_.data(),
                                             .offset = offset_.data(),
                                             .silu = silu_,
                                             .y = y_.data()};
      return RunChannelAffine(arguments, EmulatedLauncher(order));
    }
  }
  double Worst() const {
    Errors<T> errors;
    for (int64_t image = 0; image < x_.layout().images; ++image) {
      for (int64_t channel = 0; channel < x_.layout().tokens; ++channel) {
        for (int64_t i = 0; i < x_.layout().channels; ++i) {
          const int64_t vector = kChannelsLast ? i : channel;
          const double factor = factor_(image, vector, 0), offset = offset_(image, vector, 0);
          const double product = x_(image, channel, i) * factor, affine = product + offset;
          const double expected = silu_ ? affine / 2 * (1 + std::tanh(affine / 2)) : affine;
          errors.Add(y_(image, channel, i), expected, std::abs(product) + std::abs(offset));
        }
      }
    }
    return errors.worst();
  }
  bool SameBits(const AffineRun& other) const { return y_.SameBits(other.y_); }

 private:
  static int64_t VectorsOf(const Shape& shape) { return kChannelsLast ? shape.plane : shape.channels; }

  const bool silu_;
  std::mt19937 random_;
  const Rows<T> x_;
  Rows<W> factor_, offset_;
  Rows<T> y_;
};

template <typename T>
class ChannelAffineKernel : public ::testing::Test {};
TYPED_TEST_SUITE(ChannelAffineKernel, KernelNumbers);

TYPED_TEST(ChannelAffineKernel, EqualsItsDefinitionInEveryOrderOfWarps) {
  for (const bool silu : {false, true}) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message() << "silu " << silu << ", shape " << &shape - kShapes);
      AffineRun<TypeParam> run(shape, silu), other(shape, silu);
      ASSERT_EQ(run.Launch(kOrders[0]), cudaSuccess);
      EXPECT_LE(run.Worst(), 1);
      for (const cuda_emulation::Order order : kOtherOrders) {
        ASSERT_EQ(other.Launch(order), cudaSuccess);
        EXPECT_TRUE(run.SameBits(other)) << "the order of the warps shows";
      }
    }
  }
}

TYPED_TEST(ChannelAffineKernel, EqualsItsDefinitionWithChannelsLast) {
  for (const bool silu : {false, true}) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message() << "silu " << silu << ", shape " << &shape - kShapes);
      AffineRun<TypeParam, true> run(shape, silu), other(shape, silu);
      ASSERT_EQ(run.Launch(kOrders[0]), cudaSuccess);
      EXPECT_LE(run.Worst(), 1);
      for (const cuda_emulation::Order order : kOtherOrders) {
        ASSERT_EQ(other.Launch(order), cudaSuccess);
        EXPECT_TRUE(run.SameBits(other)) << "the order of the warps shows";
      }
    }
  }
}

}  // namespace
}  // namespace tessera::kernels::cuda
