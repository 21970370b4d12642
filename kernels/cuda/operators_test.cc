#include "kernels/cuda/operators.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "kernels/reference/operators.h"
#include "tests/support/cuda_emulation/cuda_emulation.h"
#include "tests/support/random_quant_weight.h"
#include "tests/support/random_tensor.h"

// Tests the operators that call the kernels. The launches run on the host, with CPU tensors.
namespace tessera::kernels::cuda {
namespace {

constexpr double kEps = 1e-6;
constexpr int64_t kImages = 2, kTokens = 5, kChannels = 96;

class CudaOperators : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  at::Tensor Make(at::IntArrayRef shape) { return Random(shape, ++seed_).to(GetParam()); }
  // Tables and factors are in fp32 if the other tensors are narrower.
  at::Tensor MakeWide(at::IntArrayRef shape) {
    return Random(shape, ++seed_).to(GetParam() == at::kDouble ? at::kDouble : at::kFloat);
  }

  // Compares with what the reference computes in fp64. bf16 is rounded once, or twice if the reference rounds in
  // between.
  void ExpectNear(const at::Tensor& actual, const at::Tensor& expected) {
    ASSERT_EQ(actual.sizes(), expected.sizes());
    const double tolerance = actual.scalar_type() == at::kBFloat16 ? 1.0 / 128
                             : actual.scalar_type() == at::kFloat  ? 4e-6
                                                                   : 1e-12;
    const at::Tensor wide = actual.to(at::kDouble), error = (wide - expected).abs();
    EXPECT_TRUE((error <= tolerance * (expected.abs() + 0.5)).all().item<bool>())
        << "error " << error.max().item<double>();
  }

  // Returns how many kernels ran during `call`.
  static int64_t Launches(const std::function<void()>& call) {
    const int64_t before = cuda_emulation::Counted().launches;
    call();
    return cuda_emulation::Counted().launches - before;
  }

 private:
  uint64_t seed_ = 0;
};

at::Tensor Wide(const at::Tensor& x) { return x.to(at::kDouble); }

// The parts of one modulation, adjacent as its product returns them, and as rows of a table.
TEST_P(CudaOperators, NormaliseAndModulateByParts) {
  const at::Tensor x = Make({kImages, kTokens, kChannels});
  const at::Tensor parts = Make({kImages, 6 * kChannels}), table = Make({kImages, 6, kChannels});
  for (const auto& [shift, scale] :
       {std::pair(parts.chunk(6, -1)[1], parts.chunk(6, -1)[4]), std::pair(table.select(1, 3), table.select(1, 0))}) {
    at::Tensor y;
    EXPECT_EQ(Launches([&] { y = LayerNormModulate(x, shift, scale, kEps); }), 1);
    ExpectNear(y, reference::LayerNormModulate(Wide(x), Wide(shift), Wide(scale), kEps));
    const at::Tensor weight = Make({kChannels});
    EXPECT_EQ(Launches([&] { y = LayerNormShift(x, weight, shift, kEps); }), 1);
    ExpectNear(y, reference::LayerNormShift(Wide(x), Wide(weight), Wide(shift), kEps));
  }
}

TEST_P(CudaOperators, WidenQuantizedWeightsToTheValuesOfTheirDefinition) {
  at::manual_seed(4);
  for (const QuantType type : kQuantTypes) {
    const QuantWeight w = RandomQuantWeight(type, 5, 512);
    at::Tensor wide;
    EXPECT_EQ(Launches([&] {
                wide = WidenWeight(w.values, w.scales.defined() ? OptionalTensor(w.scales) : OptionalTensor(),
                                   w.table.defined() ? OptionalTensor(w.table) : OptionalTensor(),
                                   static_cast<int64_t>(type), w.in, w.scale_block, GetParam());
              }),
              1);
    EXPECT_TRUE(at::equal(wide, reference::WidenWeight(w, GetParam()))) << QuantTypeName(type);
  }
}

TEST_P(CudaOperators, MultiplyByQuantizedWeightsInParts) {
  at::manual_seed(6);
  for (const QuantType type : {QuantType::kInt8, QuantType::kNibble, QuantType::kQ4_K}) {
    const QuantWeight w = RandomQuantWeight(type, 21, 256);
    const at::Tensor x = Make({kImages, kTokens, 256}), bias = Make({21});
    const at::Tensor wide = reference::WidenWeight(w, GetParam());
    const int64_t row_bytes = 256 * x.element_size();
    // All rows at once, eight at a time, and one at a time.
    for (const auto& [bytes, launches] : {std::pair(100 * row_bytes, 1), {8 * row_bytes, 3}, {int64_t{1}, 21}}) {
      at::Tensor y;
      EXPECT_EQ(Launches([&] { y = QuantProductInParts(x, w, bias, bytes); }), launches);
      const auto expect_product = [&](const at::Tensor& product, const at::Tensor& expected) {
        const double largest = expected.abs().max().item<double>();
        ExpectNear((Wide(product) / largest).to(GetParam()), expected / largest);
      };
      expect_product(y, at::linear(Wide(x), Wide(wide), Wide(bias)));
      expect_product(QuantProductInParts(x, w, {}, bytes), at::linear(Wide(x), Wide(wide)));
    }
  }
}

TEST_P(CudaOperators, QuantizeActivationsAndMultiplyThem) {
  at::manual_seed(8);
  const QuantWeight w = RandomQuantWeight(QuantType::kF8E4M3, 21, 250);
  const at::Tensor x = Make({kImages, kTokens, 250}), bias = Make({21});
  at::Tensor codes, scales, y;
  EXPECT_EQ(Launches([&] { std::tie(codes, scales) = QuantizeActivations(x); }), 1);
  const auto [expected_codes, expected_scales] = reference::QuantizeActivations(x);
  EXPECT_TRUE(at::equal(codes, expected_codes) && at::equal(scales, expected_scales));
  for (const OptionalTensor& with : {OptionalTensor(bias), OptionalTensor()}) {
    EXPECT_EQ(Launches([&] { y = WidenedFp8Product(codes, scales, w.values, w.scales, with, GetParam()); }), 2);
    EXPECT_EQ(y.scalar_type(), GetParam());
    const at::Tensor expected = reference::Fp8Product(codes, scales, w, with, GetParam());
    const double largest = expected.abs().max().item<double>();
    // Sums of 250 products in fp32, and a rounding to the type.
    const double bound = GetParam() == at::kBFloat16 ? 0.01 : 1e-5;
    EXPECT_LE((Wide(y) - Wide(expected)).abs().max().item<double>(), bound * largest);
  }
}

// Each is one kernel, whose bits are those of the separate kernels.
TEST_P(CudaOperators, QuantizeTheRowsThatTheyCompute) {
  const at::Tensor x = Make({kImages, kTokens, kChannels}), y = Make({kImages, kTokens, kChannels});
  const at::Tensor weight = Make({kChannels}), bias = Make({kChannels});
  const std::vector<at::Tensor> m = Make({kImages, 3 * kChannels}).chunk(3, -1);
  const auto expect_rows = [&](const at::Tensor& numbers, const std::tuple<at::Tensor, at::Tensor>& rows) {
    const auto [codes, scales] = QuantizeActivations(numbers);
    EXPECT_TRUE(at::equal(std::get<0>(rows), codes) && at::equal(std::get<1>(rows), scales));
  };
  std::tuple<at::Tensor, at::Tensor> rows;
  EXPECT_EQ(Launches([&] { rows = QuantizedLayerNorm(x, {}, m[0], m[1], kEps); }), 1);
  expect_rows(LayerNormModulate(x, m[0], m[1], kEps), rows);
  EXPECT_EQ(Launches([&] { rows = QuantizedLayerNorm(x, weight, m[0], {}, kEps); }), 1);
  expect_rows(LayerNormShift(x, weight, m[0], kEps), rows);
  EXPECT_EQ(Launches([&] { rows = QuantizedRmsNorm(x, weight, m[2], kEps); }), 1);
  expect_rows(RmsNorm(x, weight, kEps) * m[2].unsqueeze(1), rows);
  expect_rows(RmsNorm(x, weight, kEps), QuantizedRmsNorm(x, weight, {}, kEps));
  at::Tensor sum;
  const auto expect_sum = [&](const auto&... args) {
    EXPECT_EQ(Launches([&] {
                at::Tensor codes, scales;
                std::tie(sum, codes, scales) = QuantizedResidualNorm(x, args..., kEps);
                rows = {codes, scales};
              }),
              1);
    const auto [expected, normalised] = GatedResidualNormModulate(x, args..., kEps);
    EXPECT_TRUE(at::equal(sum, expected));
    expect_rows(normalised, rows);
  };
  const OptionalTensor none;
  expect_sum(OptionalTensor(m[2]), y, none, none, OptionalTensor(m[0]), OptionalTensor(m[1]));
  expect_sum(none, y, OptionalTensor(weight), OptionalTensor(bias), none, none);
  const std::vector<at::Tensor> halves = Make({kImages, kTokens, 2 * kChannels}).chunk(2, -1);
  EXPECT_EQ(Launches([&] { rows = QuantizedGeluTanh(halves[1]); }), 1);
  expect_rows(GeluTanh(halves[1]), rows);
  EXPECT_EQ(Launches([&] { rows = QuantizedSwiGlu(halves[0], halves[1]); }), 1);
  expect_rows(SwiGlu(halves[0], halves[1]), rows);
  // Rows that are too long for one kernel are normalised and quantized separately.
  const at::Tensor longest = Make({1, 1, 16392}), vector = Make({1, 16392});
  const auto [codes, scales] = QuantizedLayerNorm(longest, {}, vector, vector, kEps);
  EXPECT_EQ(codes.sizes(), longest.sizes());
  EXPECT_EQ(scales.sizes(), (at::IntArrayRef{1, 1}));
}

// The rows of the image and of the text in one tensor.
TEST_P(CudaOperators, TakeRowsOfALongerSequence) {
  const at::Tensor all = Make({kImages, 3 * kTokens, kChannels}), y = Make({kImages, kTokens, kChannels});
  const at::Tensor parts = Make({kImages, 3 * kChannels});
  const std::vector<at::Tensor> m = parts.chunk(3, -1);
  for (const int64_t first : {int64_t{0}, kTokens, 2 * kTokens}) {
    const at::Tensor x = all.narrow(1, first, kTokens);
    at::Tensor sum, normalised;
    EXPECT_EQ(Launches([&] { sum = GatedResidual(x, m[0], y); }), 1);
    ExpectNear(sum, reference::GatedResidual(Wide(x), Wide(m[0]), Wide(y)));
    EXPECT_EQ(
        Launches([&] { std::tie(sum, normalised) = GatedResidualNormModulate(x, m[0], y, {}, {}, m[1], m[2], kEps); }),
        1);
    ExpectNear(sum, reference::GatedResidual(Wide(x), Wide(m[0]), Wide(y)));
    ExpectNear(normalised, reference::LayerNormModulate(Wide(sum), Wide(m[1]), Wide(m[2]), kEps));
    std::tie(sum, normalised) = GatedResidualNormModulate(x, {}, y, {}, {}, m[1], m[2], kEps);
    ExpectNear(sum, Wide(x) + Wide(y));
    ExpectNear(normalised, reference::LayerNormModulate(Wide(sum), Wide(m[1]), Wide(m[2]), kEps));
  }
}

TEST_P(CudaOperators, NormaliseByWeights) {
  const at::Tensor x = Make({kImages, kTokens, kChannels}), y = Make({kImages, kTokens, kChannels});
  const at::Tensor weight = Make({kChannels}), bias = Make({kChannels});
  const auto [sum, normalised] = GatedResidualNormModulate(x, {}, y, weight, bias, {}, {}, kEps);
  ExpectNear(sum, Wide(x) + Wide(y));
  ExpectNear(normalised, at::layer_norm(Wide(sum), {kChannels}, Wide(weight), Wide(bias), kEps));
  at::Tensor rms;
  EXPECT_EQ(Launches([&] { rms = RmsNorm(x, weight, kEps); }), 1);
  ExpectNear(rms, reference::RmsNorm(Wide(x), Wide(weight), kEps));
  for (const at::Tensor& other : {x.flatten(0, 1), x.unflatten(2, {2, kChannels / 2})}) {  // [n, c] and [b, n, h, d]
    const at::Tensor part = weight.narrow(0, 0, other.size(-1));
    ExpectNear(RmsNorm(other, part, kEps), reference::RmsNorm(Wide(other), Wide(part), kEps));
  }
}

TEST_P(CudaOperators, ActivateSlices) {
  const at::Tensor all = Make({kImages, kTokens, 4 * kChannels});
  for (const at::Tensor& x : {all, all.narrow(-1, kChannels, kChannels), all.narrow(-1, 3, 7), all.flatten(0, 1)}) {
    at::Tensor y;
    EXPECT_EQ(Launches([&] { y = GeluTanh(x); }), 1);
    ExpectNear(y, reference::GeluTanh(Wide(x)));
    ExpectNear(Gelu(x), reference::Gelu(Wide(x)));
    ExpectNear(Silu(x), reference::Silu(Wide(x)));
    ExpectNear(Sigmoid(x), reference::Sigmoid(Wide(x)));
  }
}

TEST_P(CudaOperators, MultiplyTheHalvesOfOneProduct) {
  const at::Tensor product = Make({kImages, kTokens, 2 * kChannels});
  const std::vector<at::Tensor> halves = product.chunk(2, -1);
  at::Tensor y;
  EXPECT_EQ(Launches([&] { y = GegluTanh(halves[0], halves[1]); }), 1);
  ExpectNear(y, reference::GegluTanh(Wide(halves[0]), Wide(halves[1])));
  const at::Tensor apart = product.transpose(1, 2).contiguous().transpose(1, 2).chunk(2, -1)[1];
  EXPECT_EQ(Launches([&] { y = GegluTanh(halves[0], apart); }), 0);
  EXPECT_TRUE(at::equal(y, reference::GegluTanh(halves[0], apart)));
  EXPECT_EQ(Launches([&] { y = SwiGlu(halves[0], halves[1]); }), 1);
  ExpectNear(y, reference::SwiGlu(Wide(halves[0]), Wide(halves[1])));
  EXPECT_EQ(Launches([&] { y = SwiGlu(halves[0], apart); }), 0);
  EXPECT_TRUE(at::equal(y, reference::SwiGlu(halves[0], apart)));
}

// Queries, keys and values that share a product with a hidden layer, written to dense memory and to the layout that
// ranks exchange.
TEST_P(CudaOperators, SplitAndTurnHeadsToWhereTheyAreRead) {
  constexpr int64_t kRanks = 2, kHeads = 2, kHeadDim = 24, kInner = kRanks * kHeads * kHeadDim;
  const at::Tensor packed = Make({kImages, kTokens, 7 * kInner}).narrow(-1, 0, 3 * kInner);
  const at::Tensor query_weight = Make({kHeadDim}), key_weight = Make({kHeadDim}), key_bias = Make({kHeadDim});
  const at::Tensor cos = MakeWide({kTokens, kHeadDim / 2}), sin = MakeWide({kTokens, kHeadDim / 2});
  const auto run = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return Launches(
        [&] { QkvNormRope(packed, query_weight, {}, kEps, key_weight, key_bias, kEps, cos, sin, q, k, v); });
  };
  const auto memory = at::zeros({kRanks, kTokens, 3, kImages, kHeads, kHeadDim}, packed.options());
  const auto place = [&](int64_t part) { return memory.select(2, part).permute({2, 1, 0, 3, 4}); };
  std::vector<at::Tensor> dense, expected;
  for (int i = 0; i < 3; ++i) {
    dense.push_back(at::zeros({kImages, kTokens, kRanks, kHeads, kHeadDim}, packed.options()));
    expected.push_back(at::zeros({kImages, kTokens, kRanks, kHeads, kHeadDim}, at::kDouble));
  }
  reference::QkvNormRope(Wide(packed), {.weight = Wide(query_weight), .bias = {}, .eps = kEps},
                         {.weight = Wide(key_weight), .bias = Wide(key_bias), .eps = kEps},
                         {.cos = Wide(cos), .sin = Wide(sin)}, {.q = expected[0], .k = expected[1], .v = expected[2]});
  EXPECT_EQ(run(dense[0], dense[1], dense[2]), 1);
  EXPECT_EQ(run(place(0), place(1), place(2)), 1);
  for (int i = 0; i < 3; ++i) {
    ExpectNear(dense[static_cast<size_t>(i)], expected[static_cast<size_t>(i)]);
    EXPECT_TRUE(at::equal(dense[static_cast<size_t>(i)], place(i))) << "part " << i;
  }
}

TEST_P(CudaOperators, TakeKeysAloneWithTheirOwnNorm) {
  constexpr int64_t kHeads = 3, kHeadDim = 32;
  const at::Tensor packed = Make({kImages, kTokens, kHeads * kHeadDim}), weight = Make({kHeadDim});
  const at::Tensor k = at::zeros({kImages, kTokens, 1, kHeads, kHeadDim}, packed.options());
  const at::Tensor expected = at::zeros(k.sizes(), at::kDouble);
  EXPECT_EQ(Launches([&] { QkvNormRope(packed, {}, {}, 0, weight, {}, kEps, {}, {}, {}, k, {}); }), 1);
  reference::QkvNormRope(Wide(packed), {}, {.weight = Wide(weight), .bias = {}, .eps = kEps}, {},
                         {.q = {}, .k = expected, .v = {}});
  ExpectNear(k, expected);
}

// The log-sum-exp is stored as LibTorch's attention returns it, and as the operator returns it.
TEST_P(CudaOperators, MergeWhatAttentionReturns) {
  constexpr int64_t kHeads = 3, kHeadDim = 16;
  const at::Tensor read = Make({kImages, kTokens, kHeads, kHeadDim}), lse = MakeWide({kImages, kTokens, kHeads});
  const at::Tensor other = Make({kImages, kHeads, kTokens, kHeadDim}).transpose(1, 2);
  const at::Tensor other_lse = MakeWide({kImages, kHeads, kTokens}).transpose(1, 2);
  for (const at::Tensor& first : {read, read.to(lse.scalar_type())}) {
    at::Tensor merged, merged_lse;
    EXPECT_EQ(Launches([&] { std::tie(merged, merged_lse) = MergeAttention(first, lse, other, other_lse); }), 1);
    const auto [expected, expected_lse] =
        reference::MergeAttention(Wide(first), Wide(lse), Wide(other), Wide(other_lse));
    EXPECT_EQ(merged.scalar_type(), lse.scalar_type());
    ExpectNear(merged, expected);
    ExpectNear(merged_lse, expected_lse);
  }
}

// Whole images and bands of their rows, in contiguous and in channels-last format.
TEST_P(CudaOperators, TakeChannelsOfImages) {
  const at::Tensor whole = Make({kImages, 8, 12, 10}), last = whole.contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor factor = MakeWide({kImages, 8}), offset = MakeWide({kImages, 8});
  for (const at::Tensor& x : {whole, whole.slice(2, 3, 9), last, last.slice(2, 3, 9)}) {
    at::Tensor y, mean, squares;
    EXPECT_EQ(Launches([&] { y = ChannelAffine(x, factor, offset, true); }), 1);
    ExpectNear(y, reference::ChannelAffine(Wide(x), Wide(factor), Wide(offset), true));
    EXPECT_EQ(y.suggest_memory_format(), x.suggest_memory_format());
    EXPECT_EQ(Launches([&] { std::tie(mean, squares) = GroupMoments(x, 4); }), 2);
    const auto [expected_mean, expected_squares] = reference::GroupMoments(Wide(x), 4);
    EXPECT_TRUE(at::allclose(mean, expected_mean, 4e-6, 4e-6));
    EXPECT_TRUE(at::allclose(squares, expected_squares, 4e-6, 0));
  }
}

// The weighted sums of a sampler's step.
TEST_P(CudaOperators, AddUpInOnePass) {
  const std::vector<at::Tensor> inputs = {MakeWide({4, 10, 9}), MakeWide({4, 10, 9}), MakeWide({4, 10, 9})};
  const std::vector<double> weights = {0.5, -3, 0, 2, 0, 1};
  at::Tensor state = at::ones({2}, at::kLong), expected_state = state.clone();
  std::vector<at::Tensor> sums;
  EXPECT_EQ(Launches([&] { sums = WeightedSums(inputs, weights, state); }), 1);
  const std::vector<at::Tensor> expected = reference::WeightedSums(inputs, weights, expected_state);
  for (size_t s = 0; s < 2; ++s) EXPECT_TRUE(at::equal(sums[s], expected[s]));
  EXPECT_TRUE(at::equal(state, expected_state));
  // More branches of guidance than the kernel supports.
  const std::vector<at::Tensor> many(13, inputs.front());
  EXPECT_EQ(Launches([&] { sums = WeightedSums(many, std::vector<double>(13, 1), {}); }), 0);
  EXPECT_TRUE(at::allclose(sums[0], inputs.front() * 13));
}

// The reference runs for channels or columns that are not adjacent, other types and rows that are too long.
TEST_P(CudaOperators, TakeTheReferenceForWhatAKernelDoesNotTake) {
  const at::Tensor apart = Make({kImages, kChannels, kTokens}).transpose(1, 2);
  ASSERT_TRUE(kernels::Sigmoid(apart).defined());  // registers the operators with the dispatcher
  const at::Tensor shift = Make({kImages, kChannels}), scale = Make({kImages, kChannels});
  const at::Tensor weight = Make({kChannels});
  at::Tensor y;
  EXPECT_EQ(Launches([&] { y = LayerNormModulate(apart, shift, scale, kEps); }), 0);
  EXPECT_TRUE(at::equal(y, reference::LayerNormModulate(apart, shift, scale, kEps)));
  EXPECT_EQ(Launches([&] { y = GeluTanh(apart); }), 0);
  EXPECT_TRUE(at::equal(y, reference::GeluTanh(apart)));
  EXPECT_EQ(Launches([&] { y = RmsNorm(apart, weight, kEps); }), 0);
  EXPECT_TRUE(at::equal(y, reference::RmsNorm(apart, weight, kEps)));
  const at::Tensor image = Make({1, 4, 8, 6}).transpose(2, 3);
  EXPECT_EQ(Launches([&] { GroupMoments(image, 2); }), 0);
  const at::Tensor half = Make({1, 2, 8}).to(at::kHalf);
  EXPECT_EQ(Launches([&] { Silu(half); }), 0);
  const at::Tensor row = Make({1, 1, 16392});
  EXPECT_EQ(Launches([&] { RmsNorm(row, Make({16392}), kEps); }), 0);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaOperators, ::testing::Values(at::kBFloat16, at::kFloat, at::kDouble),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace tessera::kernels::cuda
