#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <limits>

#include "kernels/cpu/operators.h"
#include "kernels/ops.h"

namespace tessera::kernels {
namespace {

// One rounding of the result, relative to the largest one, and a few of the sums; bf16 rounds to 8 bits.
double Tolerance(at::ScalarType type) {
  if (type == at::kDouble) return 1e-14;
  return type == at::kFloat ? 1e-6 : 4e-3;
}

constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16};

std::vector<cpu::Isa> IsasOfThisMachine() {
  std::vector<cpu::Isa> isas;
  for (int isa = 0; isa <= static_cast<int>(cpu::BestIsa()); ++isa) isas.push_back(static_cast<cpu::Isa>(isa));
  return isas;
}

at::Tensor Random(at::IntArrayRef sizes, at::ScalarType type) { return at::randn(sizes, at::kDouble).to(type); }

// Evaluates the definition for each element of x in fp64.
at::Tensor ByDefinition(const at::Tensor& x, const std::function<double(int64_t b, int64_t n, int64_t c)>& value) {
  at::Tensor out = at::empty(x.sizes(), at::kDouble);
  auto at = out.accessor<double, 3>();
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t n = 0; n < x.size(1); ++n) {
      for (int64_t c = 0; c < x.size(2); ++c) at[b][n][c] = value(b, n, c);
    }
  }
  return out;
}

double WorstError(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual.to(at::kDouble) - expected).abs().max() / expected.abs().max()).item<double>();
}

at::Tensor LayerNormModulateByDefinition(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale,
                                         double eps) {
  const at::Tensor wide = x.to(at::kDouble).contiguous();
  const at::Tensor wide_shift = shift.to(at::kDouble).contiguous();
  const at::Tensor wide_scale = scale.to(at::kDouble).contiguous();
  const auto x_at = wide.accessor<double, 3>();
  const auto shift_at = wide_shift.accessor<double, 2>();
  const auto scale_at = wide_scale.accessor<double, 2>();
  const int64_t channels = x.size(2);
  return ByDefinition(x, [&](int64_t b, int64_t n, int64_t c) {
    double mean = 0;
    double variance = 0;
    for (int64_t i = 0; i < channels; ++i) mean += x_at[b][n][i] / static_cast<double>(channels);
    for (int64_t i = 0; i < channels; ++i)
      variance += std::pow(x_at[b][n][i] - mean, 2) / static_cast<double>(channels);
    return (x_at[b][n][c] - mean) / std::sqrt(variance + eps) * (1 + scale_at[b][c]) + shift_at[b][c];
  });
}

at::Tensor GatedResidualByDefinition(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y) {
  const at::Tensor wide = x.to(at::kDouble).contiguous();
  const at::Tensor wide_gate = gate.to(at::kDouble).contiguous();
  const at::Tensor wide_y = y.to(at::kDouble).contiguous();
  const auto x_at = wide.accessor<double, 3>();
  const auto gate_at = wide_gate.accessor<double, 2>();
  const auto y_at = wide_y.accessor<double, 3>();
  return ByDefinition(x,
                      [&](int64_t b, int64_t n, int64_t c) { return x_at[b][n][c] + gate_at[b][c] * y_at[b][n][c]; });
}

double GeluTanhByDefinition(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

constexpr int64_t kWidths[] = {1, 7, 16, 33, 72, 1152};

TEST(LayerNormModulateTest, FollowsTheDefinitionInEveryTypeAndInstructionSet) {
  at::manual_seed(1);
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : kWidths) {
      const at::Tensor x = Random({2, 5, width}, type) * 3 + 10;
      const at::Tensor shift = Random({2, width}, type);
      const at::Tensor scale = Random({2, width}, type);
      const at::Tensor expected = LayerNormModulateByDefinition(x, shift, scale, 1e-6);
      // The offset of 10 costs the differences from the mean one decimal.
      for (const cpu::Isa isa : IsasOfThisMachine()) {
        EXPECT_LE(WorstError(cpu::LayerNormModulate(x, shift, scale, 1e-6, isa), expected), 10 * Tolerance(type))
            << type << " " << width << " instruction set " << static_cast<int>(isa);
      }
    }
  }
}

TEST(LayerNormModulateTest, ReadsRowsOfAModulationTableInPlace) {
  at::manual_seed(2);
  for (const at::ScalarType type : kTypes) {
    const at::Tensor table = Random({3, 6, 48}, type);
    const at::Tensor x = Random({3, 4, 48}, type);
    const at::Tensor shift = table.select(1, 0);
    const at::Tensor scale = table.select(1, 1);
    EXPECT_LE(
        WorstError(LayerNormModulate(x, shift, scale, 1e-6), LayerNormModulateByDefinition(x, shift, scale, 1e-6)),
        Tolerance(type))
        << type;
  }
}

TEST(LayerNormModulateTest, AcceptsTransposedActivations) {
  at::manual_seed(3);
  const at::Tensor x = Random({2, 48, 5}, at::kFloat).transpose(1, 2);
  const at::Tensor vector = Random({2, 48}, at::kFloat);
  EXPECT_TRUE(
      at::equal(LayerNormModulate(x, vector, vector, 1e-6), LayerNormModulate(x.contiguous(), vector, vector, 1e-6)));
}

TEST(GatedResidualTest, FollowsTheDefinitionInEveryTypeAndInstructionSet) {
  at::manual_seed(4);
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : kWidths) {
      const at::Tensor x = Random({2, 5, width}, type);
      const at::Tensor y = Random({2, 5, width}, type);
      const at::Tensor gate = Random({2, 3, width}, type).select(1, 2);
      const at::Tensor expected = GatedResidualByDefinition(x, gate, y);
      for (const cpu::Isa isa : IsasOfThisMachine()) {
        EXPECT_LE(WorstError(cpu::GatedResidual(x, gate, y, isa), expected), Tolerance(type))
            << type << " " << width << " instruction set " << static_cast<int>(isa);
      }
    }
  }
}

TEST(GatedResidualTest, LeavesItsInputsAlone) {
  at::manual_seed(5);
  const at::Tensor x = Random({2, 5, 24}, at::kFloat);
  const at::Tensor before = x.clone();
  GatedResidual(x, Random({2, 24}, at::kFloat), Random({2, 5, 24}, at::kFloat));
  EXPECT_TRUE(at::equal(x, before));
}

TEST(GeluTanhTest, FollowsTheDefinitionOverItsWholeRange) {
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = at::linspace(-12, 12, 4803, at::kDouble).to(type).reshape({1, 1, 4803});
    const at::Tensor wide = x.to(at::kDouble);
    const auto x_at = wide.accessor<double, 3>();
    const at::Tensor expected =
        ByDefinition(x, [&](int64_t b, int64_t n, int64_t c) { return GeluTanhByDefinition(x_at[b][n][c]); });
    for (const cpu::Isa isa : IsasOfThisMachine()) {
      // Per element: relative where the value is not tiny, absolute 1e-7 where 1 + tanh cancels in the reference.
      const at::Tensor error = (cpu::GeluTanh(x, isa).to(at::kDouble) - expected).abs() / (expected.abs() + 0.05);
      EXPECT_LE(error.max().item<double>(), Tolerance(type)) << type << " instruction set " << static_cast<int>(isa);
    }
  }
}

TEST(GeluTanhTest, KeepsInfinityAndNotANumber) {
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor x = at::full({40}, std::numeric_limits<float>::quiet_NaN(), at::kFloat);
  for (const cpu::Isa isa : IsasOfThisMachine()) {
    EXPECT_TRUE(cpu::GeluTanh(x, isa).isnan().all().item<bool>());
    EXPECT_TRUE(cpu::GeluTanh(x.to(at::kBFloat16), isa).isnan().all().item<bool>());
    EXPECT_EQ(cpu::GeluTanh(at::full({3}, infinity), isa)[0].item<float>(), infinity);
    EXPECT_EQ(cpu::GeluTanh(at::full({3}, 1e30f), isa)[0].item<float>(), 1e30f);
    EXPECT_NEAR(cpu::GeluTanh(at::full({3}, -1e6f), isa)[0].item<float>(), 0.0f, 1e-30f);
  }
}

TEST(RmsNormTest, FollowsTheDefinitionInEveryTypeAndInstructionSet) {
  at::manual_seed(6);
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : kWidths) {
      const at::Tensor x = Random({2, 5, width}, type) * 100;
      const at::Tensor weight = Random({width}, type);
      const at::Tensor wide = x.to(at::kDouble);
      const at::Tensor wide_weight = weight.to(at::kDouble);
      const auto x_at = wide.accessor<double, 3>();
      const auto weight_at = wide_weight.accessor<double, 1>();
      const at::Tensor expected = ByDefinition(x, [&](int64_t b, int64_t n, int64_t c) {
        double square = 0;
        for (int64_t i = 0; i < width; ++i) square += std::pow(x_at[b][n][i], 2);
        return x_at[b][n][c] / std::sqrt(square / static_cast<double>(width) + 1e-6) * weight_at[c];
      });
      for (const cpu::Isa isa : IsasOfThisMachine()) {
        EXPECT_LE(WorstError(cpu::RmsNorm(x, weight, 1e-6, isa), expected), Tolerance(type))
            << type << " " << width << " instruction set " << static_cast<int>(isa);
      }
    }
  }
}

TEST(LinearProductTest, FollowsTheDefinition) {
  at::manual_seed(7);
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = Random({2, 3, 24}, type);
    const at::Tensor weight = Random({10, 24}, type);
    const at::Tensor bias = Random({10}, type);
    const at::Tensor wide = x.to(at::kDouble);
    const at::Tensor wide_weight = weight.to(at::kDouble);
    const at::Tensor wide_bias = bias.to(at::kDouble);
    const at::Tensor actual = LinearProduct(x, weight, bias);
    ASSERT_EQ(actual.sizes(), (std::vector<int64_t>{2, 3, 10}));
    const at::Tensor expected = ByDefinition(actual, [&](int64_t b, int64_t n, int64_t c) {
      double sum = wide_bias[c].item<double>();
      for (int64_t i = 0; i < 24; ++i) sum += wide[b][n][i].item<double>() * wide_weight[c][i].item<double>();
      return sum;
    });
    EXPECT_LE(WorstError(actual, expected), Tolerance(type)) << type;
    EXPECT_LE(WorstError(LinearProduct(x, weight, std::nullopt), expected - wide_bias), Tolerance(type)) << type;
  }
}

TEST(LinearGeluTanhTest, IsTheProductFollowedByTheActivation) {
  at::manual_seed(9);
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = Random({2, 3, 24}, type);
    const at::Tensor weight = Random({10, 24}, type);
    const at::Tensor bias = Random({10}, type);
    EXPECT_TRUE(at::equal(LinearGeluTanh(x, weight, bias), GeluTanh(LinearProduct(x, weight, bias)))) << type;
  }
}

// Sums of 200 bf16 products in fp32, rounded once: both layouts agree but for the order of the sum.
TEST(PackWeightTest, GivesTheProductOfThePlainWeight) {
  at::manual_seed(10);
  for (const at::ScalarType type : kTypes) {
    for (const int64_t rows : {1, 3, 300, 2049}) {
      const at::Tensor x = Random({rows, 200}, type);
      const at::Tensor weight = Random({130, 200}, type);
      const at::Tensor bias = Random({130}, type);
      const at::Tensor packed = PackWeight(weight);
      const at::Tensor expected = LinearProduct(x.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble));
      const at::Tensor product = LinearProduct(x, packed, bias);
      ASSERT_EQ(product.sizes(), expected.sizes());
      EXPECT_LE(WorstError(product, expected), Tolerance(type)) << type << " " << rows;
      EXPECT_LE(WorstError(LinearProduct(x, packed, std::nullopt), expected - bias.to(at::kDouble)), Tolerance(type));
      EXPECT_TRUE(at::equal(LinearGeluTanh(x, packed, bias), GeluTanh(product))) << type << " " << rows;
    }
  }
}

TEST(PackWeightTest, APackedWeightStillPassesTheGradientOfItsInput) {
  at::manual_seed(11);
  const at::Tensor x = Random({5, 200}, at::kBFloat16);
  const at::Tensor weight = Random({130, 200}, at::kBFloat16);
  x.requires_grad_();
  const at::Tensor loss = LinearProduct(x, PackWeight(weight), std::nullopt).sum();
  const at::Tensor expected = weight.to(at::kDouble).sum(0).expand({5, 200});
  EXPECT_LE(WorstError(torch::autograd::grad({loss}, {x})[0], expected), Tolerance(at::kBFloat16));
}

// Compares the gradient of f in every input, taken in fp32 through the operator, with central differences in fp64.
void ExpectGradient(const std::function<at::Tensor(const std::vector<at::Tensor>&)>& f,
                    const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.to(at::kFloat).requires_grad_());
  const at::Tensor out = f(leaves);
  ASSERT_TRUE(out.requires_grad());
  const at::Tensor direction = at::randn_like(out);
  const std::vector<at::Tensor> gradients = torch::autograd::grad({(out * direction).sum()}, leaves);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor step = at::randn_like(inputs[i]) * 1e-5;
    std::vector<at::Tensor> above = inputs;
    std::vector<at::Tensor> below = inputs;
    above[i] = inputs[i] + step;
    below[i] = inputs[i] - step;
    const double difference = ((f(above) - f(below)) * direction.to(at::kDouble)).sum().item<double>() / 2;
    const double predicted = (gradients[i].to(at::kDouble) * step).sum().item<double>();
    // fp32 gradients: 1e-5 of the sum's terms, which are about 1e-5 each.
    EXPECT_NEAR(difference, predicted, 2e-9) << "input " << i;
  }
}

TEST(GradientTest, OfEachOperatorAgreesWithFiniteDifferences) {
  at::manual_seed(8);
  const at::Tensor x = at::randn({2, 3, 16}, at::kDouble);
  const at::Tensor y = at::randn({2, 3, 16}, at::kDouble);
  const at::Tensor vector = at::randn({2, 16}, at::kDouble);
  const at::Tensor weight = at::randn({16}, at::kDouble);
  ExpectGradient([](const auto& in) { return LayerNormModulate(in[0], in[1], in[2], 1e-6); }, {x, vector, vector});
  ExpectGradient([](const auto& in) { return GatedResidual(in[0], in[1], in[2]); }, {x, vector, y});
  ExpectGradient([](const auto& in) { return GeluTanh(in[0]); }, {x});
  ExpectGradient([](const auto& in) { return RmsNorm(in[0], in[1], 1e-6); }, {x, weight});
  ExpectGradient([](const auto& in) { return LinearProduct(in[0], in[1], in[2]); },
                 {x, at::randn({5, 16}, at::kDouble), at::randn({5}, at::kDouble)});
  ExpectGradient([](const auto& in) { return LinearGeluTanh(in[0], in[1], in[2]); },
                 {x, at::randn({5, 16}, at::kDouble), at::randn({5}, at::kDouble)});
}

}  // namespace
}  // namespace tessera::kernels
