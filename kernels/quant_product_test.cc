#include <gtest/gtest.h>

#include <string>

#include "kernels/cpu/operators.h"
#include "kernels/ops.h"
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

}  // namespace
}  // namespace tessera::kernels
