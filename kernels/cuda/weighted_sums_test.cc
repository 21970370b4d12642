#include "kernels/cuda/weighted_sums.cuh"

#include <gtest/gtest.h>

#include <bit>

#include "tests/support/cuda_emulation/kernel_runs.h"

namespace tessera::kernels::cuda {
namespace {

struct Shape {
  int64_t count;
  int inputs = 3;
  int64_t offset = 0;  // before the first number of each tensor
};

// Small versions of the models' latents, tails of every length, several blocks, tensors that begin at any offset.
constexpr Shape kShapes[] = {{4096},     {16384, 6}, {1},       {2},          {3},        {4},        {5},
                             {7},        {8},        {9},       {31},         {33},       {64},       {72},
                             {88},       {100},      {128, 1},  {128, 2},     {128, 12},  {1023, 4},  {1024, 4},
                             {1025},     {2047},     {2049, 5}, {64, 3, 1},   {64, 3, 2}, {64, 3, 4}, {1000, 4, 3},
                             {4097, 12}, {0},        {0, 12},   {4100, 12, 4}};

template <typename T>
class SumsRun final {
 public:
  SumsRun(const Shape& shape, int sums) : shape_(shape), sums_(sums), random_(1) {
    std::normal_distribution<double> normal;
    for (int i = 0; i < shape.inputs; ++i) {
      inputs_.emplace_back(typename Rows<T>::Layout{.channels = shape.count, .offset = shape.offset}, 0, 1, random_);
      // Every third input belongs only to the other sum.
      for (int s = 0; s < sums; ++s) weights_[s][i] = (i + s) % 3 == 2 ? 0 : normal(random_);
    }
    for (int s = 0; s < sums; ++s) {
      results_.emplace_back(typename Rows<T>::Layout{.channels = shape.count, .offset = shape.offset});
    }
  }

  void Spoil(int64_t at, double value) { inputs_[0].data()[at] = NumberTraits<T>::From(value); }

  cudaError_t Launch(cuda_emulation::Order order) {
    WeightedSumsArguments arguments{.number = NumberTraits<T>::kNumber, .count = shape_.count, .inputs = shape_.inputs};
    for (int i = 0; i < shape_.inputs; ++i) arguments.from[i] = inputs_[static_cast<size_t>(i)].data();
    for (int s = 0; s < sums_; ++s) {
      std::ranges::copy(weights_[s], arguments.weights[s]);
      arguments.to[s] = results_[static_cast<size_t>(s)].data();
    }
    arguments.state = state_;
    return RunWeightedSums(arguments, EmulatedLauncher(order));
  }

  double Worst() const {
    Errors<T> errors;
    for (int s = 0; s < sums_; ++s) {
      for (int64_t at = 0; at < shape_.count; ++at) {
        double expected = 0, terms = 0;
        for (int i = 0; i < shape_.inputs; ++i) {
          const double term = weights_[s][i] * inputs_[static_cast<size_t>(i)](0, 0, at);
          expected += term;
          terms += std::abs(term);
        }
        errors.Add(results_[static_cast<size_t>(s)](0, 0, at), expected, terms);
      }
    }
    return errors.worst();
  }
  unsigned long long Digest() const {
    using Word = std::conditional_t<sizeof(T) == sizeof(int64_t), int64_t, int32_t>;
    unsigned long long digest = 0;
    for (int64_t at = 0; at < shape_.count; ++at) {
      const auto word = static_cast<int64_t>(std::bit_cast<Word>(NumberTraits<T>::From(results_[0](0, 0, at))));
      digest += static_cast<uint64_t>(word) * (static_cast<uint64_t>(at + 1) * kDigestSpread + 1);
    }
    return digest;
  }
  const unsigned long long* state() const { return state_; }
  bool SameBits(const SumsRun& other) const {
    for (size_t s = 0; s < results_.size(); ++s) {
      if (!results_[s].SameBits(other.results_[s])) return false;
    }
    return state_[0] == other.state_[0] && state_[1] == other.state_[1];
  }

 private:
  const Shape shape_;
  const int sums_;
  std::mt19937 random_;
  std::vector<Rows<T>> inputs_, results_;
  double weights_[kMostSums][kMostSummed] = {};
  unsigned long long state_[2] = {1, 5};
};

template <typename T>
class WeightedSumsKernel : public ::testing::Test {};
using WideNumbers = ::testing::Types<float, double>;
TYPED_TEST_SUITE(WeightedSumsKernel, WideNumbers);

TYPED_TEST(WeightedSumsKernel, EqualsItsDefinitionInBothOrdersOfWarps) {
  for (const int sums : {1, 2}) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message() << sums << " sums, shape " << &shape - kShapes);
      SumsRun<TypeParam> run(shape, sums), other(shape, sums);
      ASSERT_EQ(run.Launch(kOrders[0]), cudaSuccess);
      EXPECT_LE(run.Worst(), 1);
      EXPECT_EQ(run.state()[0], 1u);
      EXPECT_EQ(run.state()[1], 5 + run.Digest());
      ASSERT_EQ(other.Launch(kOrders[1]), cudaSuccess);
      EXPECT_TRUE(run.SameBits(other)) << "the order of the warps shows";
    }
  }
}

TYPED_TEST(WeightedSumsKernel, SeesWhatIsNotFinite) {
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity()}) {
    for (const int64_t at : {0, 1000, 2048}) {
      SumsRun<TypeParam> run({.count = 2049}, 2);
      run.Spoil(at, value);
      ASSERT_EQ(run.Launch(kOrders[0]), cudaSuccess);
      EXPECT_EQ(run.state()[0], 0u) << value << " at " << at;
    }
  }
}

TEST(WeightedSumsKernelArguments, TakesNoNarrowNumbers) {
  const WeightedSumsArguments arguments{.number = Number::kBf16, .count = 8, .inputs = 1};
  EXPECT_EQ(RunWeightedSums(arguments, EmulatedLauncher(kOrders[0])), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace tessera::kernels::cuda
