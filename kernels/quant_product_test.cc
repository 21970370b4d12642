#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cpu/operators.h"
#include "kernels/cpu/quantized_rows.h"
#include "kernels/ops.h"
#include "kernels/quantized_ops.h"
#include "kernels/reference/operators.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/random_quant_weight.h"

namespace tessera::kernels {
namespace {

constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16};

class QuantProductTest : public testing::TestWithParam<QuantType> {
 protected:
  QuantProductTest() { at::manual_seed(5); }
};

TEST_P(QuantProductTest, WidensWeightsToTheValuesOfTheDefinition) {
  const QuantWeight weight = RandomQuantWeight(GetParam(), 40, 768);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor expected = reference::WidenWeight(weight, dtype);
    EXPECT_EQ(expected.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(WidenWeight(weight, dtype), expected)) << dtype;
    for (const cpu::Isa isa : IsasOfThisMachine()) {
      EXPECT_TRUE(at::equal(cpu::WidenWeight(weight, dtype, isa), expected)) << dtype << " " << static_cast<int>(isa);
    }
  }
}

TEST_P(QuantProductTest, IsTheProductOfTheWidenedWeightBitForBit) {
  struct Shape {
    int64_t rows, in, out;
  };
  // One row, a few and more than a block; a depth of several parts, and one that products cut into slices.
  for (const Shape& s : {Shape{1, 256, 70}, Shape{3, 768, 33}, Shape{130, 512, 97}, Shape{40, 4096, 50}}) {
    const QuantWeight weight = RandomQuantWeight(GetParam(), s.out, s.in);
    for (const at::ScalarType dtype : kTypes) {
      const at::Tensor x = at::randn({s.rows, s.in}).to(dtype), bias = at::randn({s.out}).to(dtype);
      for (const cpu::Isa isa : IsasOfThisMachine()) {
        const at::Tensor wide = cpu::WidenWeight(weight, dtype, isa);
        EXPECT_TRUE(at::equal(cpu::QuantProduct(x, weight, bias, isa), cpu::LinearProduct(x, wide, bias, isa)))
            << dtype << ", " << s.rows << " rows, instruction set " << static_cast<int>(isa);
        EXPECT_TRUE(
            at::equal(cpu::QuantProduct(x, weight, std::nullopt, isa), cpu::LinearProduct(x, wide, std::nullopt, isa)));
      }
    }
  }
}

TEST_P(QuantProductTest, HasTheGradientOfTheWidenedWeight) {
  const QuantWeight weight = RandomQuantWeight(GetParam(), 24, 256);
  const at::Tensor x = at::randn({2, 5, 256}, at::kDouble).requires_grad_(), bias = at::randn({24}, at::kDouble);
  const at::Tensor wide = WidenWeight(weight, at::kDouble), of_y = at::randn({2, 5, 24}, at::kDouble);
  const at::Tensor y = QuantProduct(x, weight, bias);
  EXPECT_LE((y - at::linear(x, wide, bias)).abs().max().item<double>(), 1e-12 * y.abs().max().item<double>());
  y.backward(of_y);
  const at::Tensor expected = at::matmul(of_y, wide);
  EXPECT_LE((x.grad() - expected).abs().max().item<double>(), 1e-12 * expected.abs().max().item<double>());
}

INSTANTIATE_TEST_SUITE_P(Forms, QuantProductTest, testing::ValuesIn(kQuantTypes),
                         [](const auto& param) { return std::string(QuantTypeName(param.param)); });

TEST(QuantProductShapesTest, RowsOfAnyLengthHaveCodesOfOneByte) {
  at::manual_seed(1);
  for (const QuantType type : {QuantType::kInt8, QuantType::kF8E4M3, QuantType::kNibble}) {
    const int64_t in = type == QuantType::kNibble ? 1030 : 1031;
    const QuantWeight weight = RandomQuantWeight(type, 37, in, 2);
    const at::Tensor x = at::randn({3, 2, in}).to(at::kBFloat16);
    for (const cpu::Isa isa : IsasOfThisMachine()) {
      const at::Tensor expected =
          cpu::LinearProduct(x, cpu::WidenWeight(weight, at::kBFloat16, isa), std::nullopt, isa);
      EXPECT_EQ(expected.sizes(), (at::IntArrayRef{3, 2, 37}));
      EXPECT_TRUE(at::equal(cpu::QuantProduct(x, weight, std::nullopt, isa), expected));
    }
  }
}

// More rows than are prepared at once.
TEST(QuantProductShapesTest, LongInputsAreMultipliedInParts) {
  at::manual_seed(2);
  const QuantWeight weight = RandomQuantWeight(QuantType::kQ8_0, 24, 65536);
  const at::Tensor x = at::randn({220, 65536});
  EXPECT_TRUE(at::equal(QuantProduct(x, weight, std::nullopt),
                        LinearProduct(x, WidenWeight(weight, at::kFloat), std::nullopt)));
}

TEST(QuantProductShapesTest, PartsOfRowsAndEmptyInputsAreValid) {
  at::manual_seed(3);
  const QuantWeight whole = RandomQuantWeight(QuantType::kQ4_K, 64, 512);
  QuantWeight part = whole;
  part.values = whole.values.narrow(0, 16, 20).narrow(1, 144, 144);  // columns 256 to 512 of twenty rows
  part.in = 256;
  const at::Tensor wide = WidenWeight(whole, at::kFloat).narrow(0, 16, 20).narrow(1, 256, 256);
  EXPECT_TRUE(at::equal(WidenWeight(part, at::kFloat), wide));
  const at::Tensor x = at::randn({7, 256});
  EXPECT_TRUE(at::equal(QuantProduct(x, part, std::nullopt), LinearProduct(x, wide, std::nullopt)));
  EXPECT_EQ(QuantProduct(at::empty({0, 256}), part, std::nullopt).sizes(), (at::IntArrayRef{0, 20}));
}

TEST(QuantProductShapesTest, TensorsThatDoNotFitAreRefused) {
  const QuantWeight q8 = RandomQuantWeight(QuantType::kQ8_0, 4, 64), int8 = RandomQuantWeight(QuantType::kInt8, 4, 64),
                    nf4 = RandomQuantWeight(QuantType::kNibble, 4, 64);
  const auto is_refused = [](QuantWeight weight, auto change) {
    change(weight);
    try {
      WidenWeight(weight, at::kFloat);
    } catch (const c10::Error&) {
      return true;
    }
    return false;
  };
  EXPECT_TRUE(is_refused(q8, [](QuantWeight& w) { w.in = 32; }));
  EXPECT_TRUE(is_refused(q8, [](QuantWeight& w) { w.in = 65; }));
  EXPECT_TRUE(is_refused(q8, [](QuantWeight& w) { w.values = w.values.to(at::kShort); }));
  EXPECT_TRUE(is_refused(int8, [](QuantWeight& w) { w.scales = at::Tensor(); }));
  EXPECT_TRUE(is_refused(int8, [](QuantWeight& w) { w.scales = w.scales.to(at::kDouble); }));
  EXPECT_TRUE(is_refused(int8, [](QuantWeight& w) { w.scales = w.scales.narrow(0, 0, 3); }));
  EXPECT_TRUE(is_refused(nf4, [](QuantWeight& w) { w.scale_block = 48; }));
  EXPECT_TRUE(is_refused(nf4, [](QuantWeight& w) { w.scale_block = 32; }));
  EXPECT_TRUE(is_refused(nf4, [](QuantWeight& w) { w.table = at::Tensor(); }));
  EXPECT_FALSE(is_refused(nf4, [](QuantWeight&) {}));
  EXPECT_THROW(QuantProduct(at::randn({2, 32}), q8, std::nullopt), c10::Error);
  EXPECT_THROW(QuantProduct(at::randn({2, 64}), q8, at::randn({5})), c10::Error);
}

// Rows of numbers of every size, with the largest magnitude in different places, of zeros and of subnormal numbers, and
// ones that are not finite.
at::Tensor RowsToQuantize(int64_t columns) {
  at::Tensor x = at::randn({9, columns}) * at::exp2(at::randint(-24, 10, {9, columns}).to(at::kFloat));
  x[1].zero_();
  x[2].mul_(1e-42);
  x[3].mul_(1e30);
  x[4][columns - 1] = INFINITY;
  x[5][0] = NAN;
  x[6].fill_(-3e-39);
  x[7].copy_(at::arange(columns) * 0.5 - 7);
  x[7][0] = 448;  // the scale is 1: ties are halves of steps
  return x;
}

TEST(Fp8ProductTest, ActivationsHaveTheCodesOfTheDefinitionOnEveryInstructionSet) {
  at::manual_seed(7);
  for (const int64_t columns : {1, 3, 16, 37, 512, 1031}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const at::Tensor x = RowsToQuantize(columns).to(dtype);
      const auto [codes, scales] = reference::QuantizeActivations(x);
      for (const cpu::Isa isa : IsasOfThisMachine()) {
        const auto [fast_codes, fast_scales] = cpu::QuantizeActivations(x, isa);
        EXPECT_TRUE(at::equal(fast_codes, codes)) << columns << " " << dtype << " " << static_cast<int>(isa);
        EXPECT_TRUE(at::equal(fast_scales.view(at::kInt), scales.view(at::kInt)))
            << columns << " " << dtype << " " << static_cast<int>(isa);
      }
    }
  }
}

// By hand: codes are 4 bits of mantissa with exponents of bias 7, and steps of 2^-9 below 2^-6.
TEST(Fp8ProductTest, CodesAreTheNearestWithTiesToEven) {
  const at::Tensor x = at::tensor({448.0, 1.0, 1.0625, 1.1875, -1.0625, 0.001953125, 0.0009765625, 0.0029296875,
                                   0.01513671875, 447.0, -448.0, 0.0, 433.0},
                                  at::kFloat);
  const auto [codes, scales] = QuantizeActivations(x);
  EXPECT_EQ(scales.item<float>(), 1);
  EXPECT_TRUE(at::equal(codes, at::tensor({0x7e, 0x38, 0x38, 0x3a, 0xb8, 1, 0, 2, 8, 0x7e, 0xfe, 0, 0x7e}, at::kByte)));
  EXPECT_EQ(std::get<1>(QuantizeActivations(at::zeros({2, 3}))).sum().item<float>(), 2);
}

// PyTorch's own conversion to e4m3 is an independent source.
TEST(Fp8ProductTest, CodesAreThoseOfPyTorch) {
  at::manual_seed(8);
  const at::Tensor x = at::randn({40, 700}) * at::exp2(at::randint(-16, 4, {40, 700}).to(at::kFloat));
  const auto [codes, scales] = QuantizeActivations(x);
  EXPECT_TRUE(at::equal(codes, (x / scales.unsqueeze(-1)).to(at::kFloat8_e4m3fn).view(at::kByte)));
  EXPECT_TRUE(at::equal(scales, (x.abs().amax(-1).to(at::kDouble) / 448).to(at::kFloat)));
}

TEST(Fp8ProductTest, IsTheProductOfTheQuantizedMatrices) {
  at::manual_seed(9);
  struct Shape {
    int64_t rows, in, out;
  };
  for (const Shape& s : {Shape{1, 256, 70}, Shape{3, 33, 1}, Shape{130, 517, 97}, Shape{40, 4096, 50}}) {
    const QuantWeight weight = RandomQuantWeight(QuantType::kF8E4M3, s.out, s.in);
    const at::Tensor bias = at::randn({s.out});
    const auto [codes, scales] = QuantizeActivations(at::randn({s.rows, s.in}) * at::randn({s.rows, 1}));
    const at::Tensor x = codes.view(at::kFloat8_e4m3fn).to(at::kDouble) * scales.unsqueeze(-1);
    const at::Tensor wide = WidenWeight(weight, at::kDouble);
    const at::Tensor exact = at::linear(x, wide, bias.to(at::kDouble));
    // Sums of `in` products in fp32: the error is at most `in` roundings of the sum of magnitudes.
    const double bound = 6e-8 * static_cast<double>(s.in + 4) *
                         (at::linear(x.abs(), wide.abs()).max() + bias.abs().max()).item<double>();
    for (const cpu::Isa isa : IsasOfThisMachine()) {
      const at::Tensor y = cpu::Fp8Product(codes, scales, weight, bias, at::kFloat, isa);
      EXPECT_LE((y - exact).abs().max().item<double>(), bound) << s.in << " " << static_cast<int>(isa);
      EXPECT_TRUE(at::equal(cpu::Fp8Product(codes, scales, weight, bias, at::kBFloat16, isa), y.to(at::kBFloat16)));
    }
    const at::Tensor y = reference::Fp8Product(codes, scales, weight, bias, at::kFloat);
    EXPECT_LE((y - exact).abs().max().item<double>(), bound) << s.in;
  }
}

TEST(Fp8ProductTest, ARowThatIsNotFiniteMakesItsOwnResultNanAlone) {
  at::manual_seed(10);
  const QuantWeight weight = RandomQuantWeight(QuantType::kF8E4M3, 20, 64);
  at::Tensor x = at::randn({3, 64});
  x[1][5] = -INFINITY;
  const auto [codes, scales] = QuantizeActivations(x);
  const at::Tensor y = Fp8Product(codes, scales, weight, std::nullopt, at::kFloat);
  EXPECT_TRUE(y[1].isnan().all().item<bool>());
  EXPECT_TRUE(y[0].isfinite().all().item<bool>() && y[2].isfinite().all().item<bool>());
}

// Whether all tensors have the same bits, NaN included.
bool HaveSameBits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const at::Tensor& x, const at::Tensor& y) {
    return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
           at::equal(x.contiguous().view(at::kByte), y.contiguous().view(at::kByte));
  });
}

std::vector<at::Tensor> Listed(const std::tuple<at::Tensor, at::Tensor>& rows) {
  return {std::get<0>(rows), std::get<1>(rows)};
}

std::vector<at::Tensor> Listed(const std::tuple<at::Tensor, at::Tensor, at::Tensor>& all) {
  return {std::get<0>(all), std::get<1>(all), std::get<2>(all)};
}

// The inputs of a norm with more rows than a thread's cache holds, of an even and an uneven number of channels. Some
// rows are zero, large, small or not finite; the modulations are parts of one wider product.
struct NormInputs {
  NormInputs(int64_t channels, at::ScalarType dtype)
      : x(at::randn({3, 37, channels}) * at::exp2(at::randint(-12, 12, {3, 37, 1}).to(at::kFloat))),
        y(at::randn({3, 37, channels}).to(dtype)),
        weight(at::randn({channels}).to(dtype)),
        bias(at::randn({channels}).to(dtype)) {
    x[0][3].zero_();
    x[1][5][0] = INFINITY;
    x[2][36][channels - 1] = NAN;
    x = x.to(dtype);
    const std::vector<at::Tensor> parts = at::randn({3, 3 * channels}).to(dtype).chunk(3, -1);
    gate = parts[0];
    shift = parts[1];
    scale = parts[2];
  }

  at::Tensor x, y, weight, bias, gate, shift, scale;
};

constexpr double kEps = 1e-6;

TEST(FoldedQuantizationTest, NormsHaveTheBitsOfSeparatePassesOnEveryInstructionSet) {
  at::manual_seed(11);
  for (const int64_t channels : {1, 24, 131, 1152}) {
    for (const at::ScalarType dtype : kTypes) {
      const NormInputs in(channels, dtype);
      for (const cpu::Isa isa : IsasOfThisMachine()) {
        SCOPED_TRACE(testing::Message() << channels << " " << dtype << " " << static_cast<int>(isa));
        const auto quantized = [&](const at::Tensor& x) { return cpu::QuantizeActivations(x, isa); };
        EXPECT_TRUE(HaveSameBits(Listed(cpu::QuantizedLayerNorm(in.x, std::nullopt, in.shift, in.scale, kEps, isa)),
                                 Listed(quantized(cpu::LayerNormModulate(in.x, in.shift, in.scale, kEps, isa)))));
        EXPECT_TRUE(HaveSameBits(Listed(cpu::QuantizedLayerNorm(in.x, in.weight, in.shift, std::nullopt, kEps, isa)),
                                 Listed(quantized(cpu::LayerNormShift(in.x, in.weight, in.shift, kEps, isa)))));
        for (const std::optional<at::Tensor>& factor : {std::optional(in.scale), std::optional<at::Tensor>()}) {
          const at::Tensor normalised = cpu::RmsNorm(in.x, in.weight, kEps, isa);
          EXPECT_TRUE(HaveSameBits(Listed(cpu::QuantizedRmsNorm(in.x, in.weight, factor, kEps, isa)),
                                   Listed(quantized(factor ? normalised * factor->unsqueeze(1) : normalised))));
        }
        const auto expect_sum = [&](const auto&... args) {
          const auto [sum, normalised] = cpu::GatedResidualNormModulate(in.x, args..., kEps, isa);
          const auto [codes, scales] = quantized(normalised);
          EXPECT_TRUE(HaveSameBits(Listed(cpu::QuantizedResidualNorm(in.x, args..., kEps, isa)), {sum, codes, scales}));
        };
        const std::optional<at::Tensor> none;
        expect_sum(std::optional(in.gate), in.y, none, none, std::optional(in.shift), std::optional(in.scale));
        expect_sum(none, in.y, none, none, std::optional(in.shift), std::optional(in.scale));
        expect_sum(none, in.y, std::optional(in.weight), std::optional(in.bias), none, none);
      }
    }
  }
}

TEST(FoldedQuantizationTest, ActivationsHaveTheBitsOfSeparatePassesOnEveryInstructionSet) {
  at::manual_seed(12);
  for (const int64_t channels : {1, 24, 131, 1152}) {
    for (const at::ScalarType dtype : kTypes) {
      // Halves of the rows of one product, and rows by themselves.
      const at::Tensor product = at::cat({NormInputs(channels, dtype).x, NormInputs(channels, dtype).x}, -1);
      const std::vector<at::Tensor> halves = product.chunk(2, -1);
      for (const cpu::Isa isa : IsasOfThisMachine()) {
        SCOPED_TRACE(testing::Message() << channels << " " << dtype << " " << static_cast<int>(isa));
        for (const at::Tensor& x : {halves[1], product, product[1]}) {
          EXPECT_TRUE(HaveSameBits(Listed(cpu::QuantizedGeluTanh(x, isa)),
                                   Listed(cpu::QuantizeActivations(cpu::GeluTanh(x, isa), isa))));
        }
        EXPECT_TRUE(HaveSameBits(Listed(cpu::QuantizedSwiGlu(halves[0], halves[1], isa)),
                                 Listed(cpu::QuantizeActivations(cpu::SwiGlu(halves[0], halves[1], isa), isa))));
      }
    }
  }
}

// The operators that models call, and the separate passes that devices without their own version make.
TEST(FoldedQuantizationTest, OperatorsAreThoseThatTheirNamesSay) {
  at::manual_seed(13);
  const NormInputs in(48, at::kBFloat16);
  const auto rows = [](const QuantizedRows& all) {
    EXPECT_EQ(all.dtype, at::kBFloat16);
    return std::vector{all.codes, all.scales};
  };
  const auto quantized = [](const at::Tensor& x) { return Listed(QuantizeActivations(x)); };
  EXPECT_TRUE(HaveSameBits(rows(QuantizedLayerNormModulate(in.x, in.shift, in.scale, kEps)),
                           quantized(LayerNormModulate(in.x, in.shift, in.scale, kEps))));
  EXPECT_TRUE(HaveSameBits(rows(QuantizedLayerNormShift(in.x, in.weight, in.shift, kEps)),
                           quantized(LayerNormShift(in.x, in.weight, in.shift, kEps))));
  EXPECT_TRUE(HaveSameBits(rows(QuantizedRmsNorm(in.x, in.weight, in.scale, kEps)),
                           quantized(RmsNorm(in.x, in.weight, kEps) * in.scale.unsqueeze(1))));
  EXPECT_TRUE(HaveSameBits(rows(QuantizedGeluTanh(in.x)), quantized(GeluTanh(in.x))));
  EXPECT_TRUE(HaveSameBits(rows(QuantizedSwiGlu(in.x, in.y)), quantized(SwiGlu(in.x, in.y))));
  const auto [sum, normalised] = GatedResidualNormModulate(in.x, in.gate, in.y, in.shift, in.scale, kEps);
  const auto [folded_sum, folded] = QuantizedResidualNormModulate(in.x, in.gate, in.y, in.shift, in.scale, kEps);
  EXPECT_TRUE(HaveSameBits({folded_sum}, {sum}) && HaveSameBits(rows(folded), quantized(normalised)));
  const auto [plain_sum, affine] = ResidualNorm(in.x, in.y, in.weight, in.bias, kEps);
  const auto [folded_plain_sum, folded_affine] = QuantizedResidualNorm(in.x, in.y, in.weight, in.bias, kEps);
  EXPECT_TRUE(HaveSameBits({folded_plain_sum}, {plain_sum}) && HaveSameBits(rows(folded_affine), quantized(affine)));
  EXPECT_THROW(QuantizedGeluTanh(at::randn({2, 8}).requires_grad_()), c10::Error);
  EXPECT_THROW(QuantizedGeluTanh(at::ones({2, 8}, at::kLong)), c10::Error);
  EXPECT_THROW(QuantizedSwiGlu(in.x, in.y.narrow(1, 0, 3)), c10::Error);
  EXPECT_THROW(QuantizedRmsNorm(in.x, in.weight, in.weight, kEps), c10::Error);
}

TEST(Fp8ProductTest, TensorsThatDoNotFitAreRefused) {
  const QuantWeight weight = RandomQuantWeight(QuantType::kF8E4M3, 4, 64),
                    int8 = RandomQuantWeight(QuantType::kInt8, 4, 64);
  const auto [codes, scales] = QuantizeActivations(at::randn({2, 64}));
  EXPECT_EQ(Fp8Product(codes, scales, weight, std::nullopt, at::kFloat).sizes(), (at::IntArrayRef{2, 4}));
  EXPECT_THROW(Fp8Product(codes, scales, int8, std::nullopt, at::kFloat), c10::Error);
  EXPECT_THROW(Fp8Product(codes.narrow(1, 0, 32), scales, weight, std::nullopt, at::kFloat), c10::Error);
  EXPECT_THROW(Fp8Product(codes, scales.narrow(0, 0, 1), weight, std::nullopt, at::kFloat), c10::Error);
  EXPECT_THROW(Fp8Product(codes, scales, weight, at::randn({5}), at::kFloat), c10::Error);
  EXPECT_THROW(QuantizeActivations(at::randn({2, 64}).requires_grad_()), c10::Error);
  EXPECT_THROW(QuantizeActivations(at::ones({2, 64}, at::kLong)), c10::Error);
}

}  // namespace
}  // namespace tessera::kernels
