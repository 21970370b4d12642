#include "kernels/cuda/activation.cuh"

#include <gtest/gtest.h>

#include "tests/support/cuda_emulation/kernel_runs.h"

namespace tessera::kernels::cuda {
namespace {

struct Shape {
  int64_t images, tokens, channels, gap = 0, offset = 0, image_gap = 0;
};

// The widths of the models' hidden layers, dense and with other columns between the rows as in FLUX.1's single blocks
// and T5; row lengths that are not whole chunks.
constexpr Shape kShapes[] = {{1, 1, 12288, 9216},
                             {1, 2, 10240},
                             {2, 1, 4608},
                             {1, 2, 3072},
                             {1, 2, 2048, 2048},
                             {2, 1, 1152},
                             {1, 1, 1},
                             {1, 1, 2},
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

// The definitions, computed with functions that the kernel does not use.
double Defined(Activation activation, double x) {
  switch (activation) {
    case Activation::kGeluTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * std::pow(x, 3))));
    case Activation::kGelu:
      return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kSilu:
      return x / 2 * (1 + std::tanh(x / 2));
    case Activation::kSigmoid:
      return (1 + std::tanh(x / 2)) / 2;
  }
  return 0;
}

template <typename T>
class ActivationRun final {
 public:
  ActivationRun(const Shape& shape, Activation activation, bool gated = false, double deviation = 2)
      : activation_(activation),
        gated_(gated),
        random_(1),
        x_({.images = shape.images,
            .tokens = shape.tokens,
            .channels = shape.channels,
            .gap = shape.gap,
            .offset = shape.offset,
            .image_gap = shape.image_gap},
           0, deviation, random_),
        // The gate follows each row of x if there is room between the rows, as in two halves of one product.
        gate_({.images = shape.images,
               .tokens = shape.tokens,
               .channels = shape.channels,
               .gap = shape.gap + shape.channels},
              0, 1, random_),
        y_({.images = shape.images, .tokens = shape.tokens, .channels = shape.channels}) {}

  cudaError_t Launch(cuda_emulation::Order order) {
    const typename Rows<T>::Layout& layout = x_.layout();
    const ActivationArguments arguments{.number = NumberTraits<T>::kNumber,
                                        .activation = activation_,
                                        .images = layout.images,
                                        .tokens = layout.tokens,
                                        .channels = layout.channels,
                                        .x = x_.View(),
                                        .gate = gated_ ? gate_.View() : kernels::cuda::ConstRows(),
                                        .y = y_.data()};
    return RunActivation(arguments, EmulatedLauncher(order));
  }
  double Worst() const {
    Errors<T> errors;
    const typename Rows<T>::Layout& layout = x_.layout();
    for (int64_t image = 0; image < layout.images; ++image) {
      for (int64_t token = 0; token < layout.tokens; ++token) {
        for (int64_t channel = 0; channel < layout.channels; ++channel) {
          const double x = x_(image, token, channel), gate = gated_ ? gate_(image, token, channel) : 1;
          const double factor = activation_ == Activation::kSigmoid ? 1 : std::abs(x);
          errors.Add(y_(image, token, channel), Defined(activation_, x) * gate, factor * std::abs(gate));
        }
      }
    }
    return errors.worst();
  }
  bool SameBits(const ActivationRun& other) const { return y_.SameBits(other.y_); }

 private:
  const Activation activation_;
  const bool gated_;
  std::mt19937 random_;
  const Rows<T> x_, gate_;
  Rows<T> y_;
};

template <typename T>
class ActivationKernel : public ::testing::Test {};
TYPED_TEST_SUITE(ActivationKernel, KernelNumbers);

constexpr Activation kActivations[] = {Activation::kGeluTanh, Activation::kGelu, Activation::kSilu,
                                       Activation::kSigmoid};

TYPED_TEST(ActivationKernel, EqualsItsDefinitionInEveryOrderOfWarps) {
  for (const Activation activation : kActivations) {
    for (const bool gated : {false, true}) {
      for (const Shape& shape : kShapes) {
        SCOPED_TRACE(testing::Message() << "activation " << static_cast<int>(activation) << ", gated " << gated
                                        << ", shape " << &shape - kShapes);
        ActivationRun<TypeParam> run(shape, activation, gated), other(shape, activation, gated);
        ASSERT_EQ(run.Launch(kOrders[0]), cudaSuccess);
        EXPECT_LE(run.Worst(), 1);
        for (const cuda_emulation::Order order : kOtherOrders) {
          ASSERT_EQ(other.Launch(order), cudaSuccess);
          EXPECT_TRUE(run.SameBits(other)) << "the order of the warps shows";
        }
      }
    }
  }
}

TYPED_TEST(ActivationKernel, StaysRightFarFromZero) {
  for (const Activation activation : kActivations) {
    ActivationRun<TypeParam> run({1, 1, 256}, activation, /*gated=*/false, /*deviation=*/1e4);
    ASSERT_EQ(run.Launch(kOrders[0]), cudaSuccess);
    EXPECT_LE(run.Worst(), 1) << static_cast<int>(activation);
  }
}

}  // namespace
}  // namespace tessera::kernels::cuda
