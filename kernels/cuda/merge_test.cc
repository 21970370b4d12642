#include "kernels/cuda/merge.cuh"

#include <gtest/gtest.h>

#include "tests/support/cuda_emulation/kernel_runs.h"

namespace tessera::kernels::cuda {
namespace {

constexpr double kNoKeys = -std::numeric_limits<double>::infinity();

struct Shape {
  int64_t images, tokens;
  int heads, head_dim;
  int64_t gap = 0, offset = 0;  // between rows of heads, and before the first
  bool heads_first = false;     // the lse is [images, heads, tokens], as LibTorch's attention returns it
};

constexpr Shape kShapes[] = {{1, 3, 24, 128},
                             {1, 3, 24, 64},
                             {1, 2, 16, 88},
                             {2, 2, 16, 72},
                             {2, 3, 2, 128},
                             {2, 3, 2, 64},
                             {2, 3, 2, 88},
                             {2, 3, 2, 72},
                             {1, 1, 1, 1},
                             {1, 1, 1, 2},
                             {1, 2, 3, 3},
                             {2, 2, 3, 5},
                             {2, 2, 3, 7},
                             {1, 3, 2, 8},
                             {2, 2, 2, 9},
                             {1, 3, 5, 16},
                             {1, 2, 2, 20},
                             {1, 2, 2, 33},
                             {1, 1, 2, 99},
                             {1, 1, 2, 130},
                             {1, 1, 3, 160},
                             {1, 1, 3, 256},
                             {2, 3, 2, 64, 64},
                             {2, 3, 2, 64, 1},
                             {2, 3, 2, 72, 0, 1},
                             {2, 3, 2, 88, 3, 5},
                             {2, 3, 4, 128, 0, 0, true},
                             {2, 3, 4, 64, 8, 8, true},
                             {1, 1, 40, 64},
                             {0, 3, 2, 64},
                             {2, 0, 2, 64},
                             {2, 3, 0, 64}};

// One of the two inputs: results in `TRead` and their lse.
template <typename TRead, typename W>
struct Part {
  Part(const Shape& shape, std::mt19937& random)
      : shape(shape),
        read({.images = shape.images,
              .tokens = shape.tokens,
              .channels = int64_t{shape.heads} * shape.head_dim,
              .gap = shape.gap,
              .offset = shape.offset},
             0, 1, random) {
    std::normal_distribution<double> normal(2, 3);
    for (int64_t i = 0; i < shape.images * shape.tokens * shape.heads; ++i)
      lse.push_back(static_cast<W>(normal(random)));
  }
  size_t LseAt(int64_t image, int64_t token, int64_t head) const {
    return static_cast<size_t>(shape.heads_first ? (image * shape.heads + head) * shape.tokens + token
                                                 : (image * shape.tokens + token) * shape.heads + head);
  }
  PartialRead View() const {
    const ConstRows rows = read.View();
    return {.data = rows.data,
            .image_stride = rows.image_stride,
            .token_stride = rows.token_stride,
            .head_stride = shape.head_dim,
            .lse = lse.data(),
            .lse_image_stride = shape.tokens * shape.heads,
            .lse_token_stride = shape.heads_first ? 1 : shape.heads,
            .lse_head_stride = shape.heads_first ? shape.tokens : 1};
  }

  const Shape shape;
  const Rows<TRead> read;
  std::vector<W> lse;
};

template <typename TRead, typename T>
class MergeRun final {
 public:
  using W = WideOf<T>;

  explicit MergeRun(const Shape& shape)
      : shape_(shape),
        random_(1),
        part_(shape, random_),
        other_(shape, random_),
        merged_({.images = shape.images, .tokens = shape.tokens, .channels = int64_t{shape.heads} * shape.head_dim}),
        merged_lse_(part_.lse.size()) {}

  void SetLse(double lse, double other_lse) {
    std::ranges::fill(part_.lse, static_cast<W>(lse));
    std::ranges::fill(other_.lse, static_cast<W>(other_lse));
  }
  cudaError_t Launch(cuda_emulation::Order order) {
    const MergeArguments arguments{.number = NumberTraits<T>::kNumber,
                                   .sum_is_wide = !std::is_same_v<TRead, T>,
                                   .images = shape_.images,
                                   .tokens = shape_.tokens,
                                   .heads = shape_.heads,
                                   .head_dim = shape_.head_dim,
                                   .read = part_.View(),
                                   .other = other_.View(),
                                   .merged = merged_.data(),
                                   .merged_lse = merged_lse_.data()};
    return RunMerge(arguments, EmulatedLauncher(order));
  }

  // The results are in the wide type, regardless of the types of the inputs.
  double Worst() const {
    Errors<W> errors;
    for (int64_t image = 0; image < shape_.images; ++image) {
      for (int64_t token = 0; token < shape_.tokens; ++token) {
        for (int64_t head = 0; head < shape_.heads; ++head) AddHead(image, token, head, errors);
      }
    }
    return errors.worst();
  }
  bool SameBits(const MergeRun& other) const {
    return merged_.SameBits(other.merged_) && merged_lse_ == other.merged_lse_;
  }
  double At(int64_t channel) const { return merged_(0, 0, channel); }
  double lse() const { return merged_lse_[0]; }
  double OtherAt(int64_t channel) const { return other_.read(0, 0, channel); }

 private:
  void AddHead(int64_t image, int64_t token, int64_t head, Errors<W>& errors) const {
    const double lse = part_.lse[part_.LseAt(image, token, head)];
    const double other_lse = other_.lse[other_.LseAt(image, token, head)];
    const double weight = 1 / (1 + std::exp(other_lse - lse)), other_weight = 1 / (1 + std::exp(lse - other_lse));
    errors.Add(merged_lse_[static_cast<size_t>((image * shape_.tokens + token) * shape_.heads + head)],
               std::log(std::exp(lse) + std::exp(other_lse)), std::abs(lse) + std::abs(other_lse));
    for (int64_t i = 0; i < shape_.head_dim; ++i) {
      const int64_t channel = head * shape_.head_dim + i;
      const double x = part_.read(image, token, channel) * weight,
                   y = other_.read(image, token, channel) * other_weight;
      errors.Add(merged_(image, token, channel), x + y, std::abs(x) + std::abs(y));
    }
  }

  const Shape shape_;
  std::mt19937 random_;
  Part<TRead, W> part_;
  Part<T, W> other_;
  Rows<W> merged_;
  std::vector<W> merged_lse_;
};

template <typename First, typename Second>
struct Pair {
  using Read = First;
  using Other = Second;
};

template <typename T>
class MergeKernel : public ::testing::Test {};
using Pairs = ::testing::Types<Pair<__nv_bfloat16, __nv_bfloat16>, Pair<float, __nv_bfloat16>, Pair<float, float>,
                               Pair<double, double>>;
TYPED_TEST_SUITE(MergeKernel, Pairs);

TYPED_TEST(MergeKernel, EqualsItsDefinitionInEveryOrderOfWarps) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << "shape " << &shape - kShapes);
    MergeRun<typename TypeParam::Read, typename TypeParam::Other> run(shape), other(shape);
    ASSERT_EQ(run.Launch(kOrders[0]), cudaSuccess);
    EXPECT_LE(run.Worst(), 1);
    for (const cuda_emulation::Order order : kOtherOrders) {
      ASSERT_EQ(other.Launch(order), cudaSuccess);
      EXPECT_TRUE(run.SameBits(other)) << "the order of the warps shows";
    }
  }
}

TYPED_TEST(MergeKernel, GivesResultsOfNoKeysNoWeight) {
  MergeRun<typename TypeParam::Read, typename TypeParam::Other> run({1, 2, 2, 64});
  run.SetLse(kNoKeys, 3);
  ASSERT_EQ(run.Launch(kOrders[0]), cudaSuccess);
  EXPECT_EQ(run.lse(), 3);
  EXPECT_EQ(run.At(5), run.OtherAt(5));
  run.SetLse(kNoKeys, kNoKeys);
  ASSERT_EQ(run.Launch(kOrders[0]), cudaSuccess);
  EXPECT_EQ(run.lse(), kNoKeys);
  EXPECT_EQ(run.At(5), 0);
}

TYPED_TEST(MergeKernel, KeepsItsDigitsWhereTheExponentialsOverflow) {
  MergeRun<typename TypeParam::Read, typename TypeParam::Other> run({1, 1, 1, 64});
  run.SetLse(-2000, 2000);
  ASSERT_EQ(run.Launch(kOrders[0]), cudaSuccess);
  EXPECT_EQ(run.lse(), 2000);
  EXPECT_EQ(run.At(5), run.OtherAt(5));
}

}  // namespace
}  // namespace tessera::kernels::cuda
