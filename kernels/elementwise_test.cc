#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <limits>

#include "kernels/cpu/operators.h"
#include "kernels/ops.h"
#include "kernels/reference/operators.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/worst_error.h"

namespace tessera::kernels {
namespace {

// One rounding of the result, relative to the largest one, and a few roundings of the sums; bf16 rounds to 8 bits.
double Tolerance(at::ScalarType type) {
  if (type == at::kDouble) return 1e-14;
  return type == at::kFloat ? 1e-6 : 4e-3;
}

constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16};

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
      // The offset of 10 costs the differences from the mean one decimal of precision.
      for (const cpu::Isa isa : IsasOfThisMachine()) {
        EXPECT_LE(WorstError(cpu::LayerNormModulate(x, shift, scale, 1e-6, isa), expected), 10 * Tolerance(type))
            << type << " " << width << " instruction set " << static_cast<int>(isa);
        const at::Tensor weight = Random({width}, type), factor = weight.to(at::kDouble).expand({2, width}) - 1;
        EXPECT_LE(WorstError(cpu::LayerNormShift(x, weight, shift, 1e-6, isa),
                             LayerNormModulateByDefinition(x, shift, factor, 1e-6)),
                  10 * Tolerance(type))
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

// The fused operator saves reading the sum again; results are equal bit for bit.
TEST(GatedResidualNormModulateTest, IsTheResidualFollowedByTheNorm) {
  at::manual_seed(12);
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : kWidths) {
      const at::Tensor x = Random({2, 5, width}, type), y = Random({2, 5, width}, type);
      const at::Tensor table = Random({2, 6, width}, type);
      const at::Tensor gate = table.select(1, 0), shift = table.select(1, 1), scale = Random({2, width}, type);
      for (const cpu::Isa isa : IsasOfThisMachine()) {
        const auto of = [&](const std::optional<at::Tensor>& by) {
          return cpu::GatedResidualNormModulate(x, by, y, std::nullopt, std::nullopt, shift, scale, 1e-6, isa);
        };
        const auto [sum, normalised] = of(gate);
        EXPECT_TRUE(at::equal(sum, cpu::GatedResidual(x, gate, y, isa))) << type << " " << width;
        EXPECT_TRUE(at::equal(normalised, cpu::LayerNormModulate(sum, shift, scale, 1e-6, isa)))
            << type << " " << width;
        const auto [plain, normalised_plain] = of(std::nullopt);
        EXPECT_TRUE(at::equal(plain, x + y)) << type << " " << width;
        EXPECT_TRUE(at::equal(normalised_plain, cpu::LayerNormModulate(plain, shift, scale, 1e-6, isa)))
            << type << " " << width;
      }
    }
  }
}

TEST(GatedResidualNormModulateTest, WithWeightsIsALayerNormOfTheSum) {
  at::manual_seed(13);
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : kWidths) {
      const at::Tensor x = Random({2, 5, width}, type), y = Random({2, 5, width}, type);
      const at::Tensor weight = Random({width}, type), bias = Random({width}, type);
      for (const cpu::Isa isa : IsasOfThisMachine()) {
        const auto [sum, normalised] =
            cpu::GatedResidualNormModulate(x, std::nullopt, y, weight, bias, std::nullopt, std::nullopt, 1e-6, isa);
        EXPECT_TRUE(at::equal(sum, x + y)) << type << " " << width;
        const at::Tensor expected =
            at::layer_norm(sum.to(at::kDouble), {width}, weight.to(at::kDouble), bias.to(at::kDouble), 1e-6);
        EXPECT_LE(WorstError(normalised, expected), Tolerance(type))
            << type << " " << width << " instruction set " << static_cast<int>(isa);
      }
    }
  }
}

// Computes one part of QkvNormRope element by element. `heads` [b, n, h, d].
at::Tensor HeadsByDefinition(const at::Tensor& heads, const HeadNorm& norm, const RotaryTables& rotary) {
  at::Tensor out = heads.to(at::kDouble).clone(at::MemoryFormat::Contiguous);
  const auto wide = [](const at::Tensor& x) {
    return x.defined() ? x.to(at::kDouble).contiguous() : at::empty({0}, at::kDouble);
  };
  const at::Tensor weight = wide(norm.weight), bias = wide(norm.bias), cos = wide(rotary.cos), sin = wide(rotary.sin);
  const int64_t d = heads.size(3), n = heads.size(1), per_token = heads.size(2);
  const auto channels = static_cast<double>(d);
  for (int64_t i = 0; i < out.numel() / d; ++i) {
    double* head = out.mutable_data_ptr<double>() + i * d;
    if (norm.weight.defined()) {
      double mean = 0, variance = 0;
      for (int64_t c = 0; c < d && norm.bias.defined(); ++c) mean += head[c] / channels;
      for (int64_t c = 0; c < d; ++c) variance += std::pow(head[c] - mean, 2) / channels;
      for (int64_t c = 0; c < d; ++c) {
        head[c] = (head[c] - mean) / std::sqrt(variance + norm.eps) * weight.const_data_ptr<double>()[c];
        if (norm.bias.defined()) head[c] += bias.const_data_ptr<double>()[c];
      }
    }
    const int64_t token = i / per_token % n;
    for (int64_t k = 0; k < d / 2 && rotary.cos.defined(); ++k) {
      const double a = cos.const_data_ptr<double>()[token * d / 2 + k];
      const double b = sin.const_data_ptr<double>()[token * d / 2 + k];
      const double even = head[2 * k], odd = head[2 * k + 1];
      head[2 * k] = even * a - odd * b;
      head[2 * k + 1] = even * b + odd * a;
    }
  }
  return out;
}

RotaryTables Angles(int64_t tokens, int64_t head_dim, at::ScalarType type) {
  const at::Tensor angles = at::randn({tokens, head_dim / 2}, at::kDouble) * 3;
  const at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
  return {.cos = at::cos(angles).to(wide), .sin = at::sin(angles).to(wide)};
}

constexpr int64_t kHeadDims[] = {4, 8, 24, 72, 88, 128};

TEST(QkvNormRopeTest, FollowsTheDefinitionInEveryTypeAndInstructionSet) {
  at::manual_seed(14);
  const int64_t tokens = 3, heads = 4;
  for (const at::ScalarType type : kTypes) {
    for (const int64_t d : kHeadDims) {
      const at::Tensor weight = Random({d}, type), bias = Random({d}, type);
      const HeadNorm rms{.weight = weight, .bias = {}, .eps = 1e-6}, layer{.weight = weight, .bias = bias, .eps = 1e-5};
      const at::Tensor packed = Random({2, tokens, 4 * heads * d}, type).narrow(2, 0, 3 * heads * d);
      const std::vector<at::Tensor> parts = packed.unflatten(2, {3 * heads, d}).chunk(3, 2);
      const RotaryTables angles = Angles(tokens, d, type);
      for (const auto& [query_norm, key_norm] :
           {std::pair(rms, layer), std::pair(layer, HeadNorm()), std::pair(HeadNorm(), rms)}) {
        for (const RotaryTables& rotary : {angles, RotaryTables()}) {
          for (const cpu::Isa isa : IsasOfThisMachine()) {
            // Rows of longer buffers: once heads in two groups that are apart, tokens first, and once one group, images
            // first.
            const at::Tensor sent = at::zeros({2, tokens + 2, 2, 2, heads / 2, d}, packed.options());
            const at::Tensor kept = at::zeros({2, tokens + 2, heads, d}, packed.options());
            const auto place = [&](int64_t tensor) { return sent.select(2, tensor).permute({2, 1, 0, 3, 4}); };
            const HeadsOut out{.q = place(0).narrow(1, 1, tokens),
                               .k = kept.unsqueeze(2).narrow(1, 2, tokens),
                               .v = place(1).narrow(1, 1, tokens)};
            cpu::QkvNormRope(packed, query_norm, key_norm, rotary, out, isa);
            const std::string what = std::string(c10::toString(type)) + " " + std::to_string(d) + " instruction set " +
                                     std::to_string(static_cast<int>(isa));
            EXPECT_LE(WorstError(out.q.flatten(2, 3), HeadsByDefinition(parts[0], query_norm, rotary)), Tolerance(type))
                << what;
            EXPECT_LE(WorstError(out.k.flatten(2, 3), HeadsByDefinition(parts[1], key_norm, rotary)), Tolerance(type))
                << what;
            EXPECT_TRUE(at::equal(out.v.flatten(2, 3), parts[2])) << what;
            // The surrounding memory is unchanged.
            EXPECT_EQ(sent.narrow(1, 0, 1).count_nonzero().item<int64_t>() +
                          sent.narrow(1, tokens + 1, 1).count_nonzero().item<int64_t>() +
                          kept.narrow(1, 0, 2).count_nonzero().item<int64_t>(),
                      0)
                << what;
          }
        }
      }
    }
  }
}

TEST(QkvNormRopeTest, WritesThePartsThatHaveAPlace) {
  at::manual_seed(15);
  const at::Tensor packed = Random({2, 3, 6 * 8}, at::kFloat);
  const HeadNorm norm{.weight = Random({8}, at::kFloat), .bias = {}, .eps = 1e-6};
  const at::Tensor all = at::empty({3, 2, 3, 1, 2, 8}, at::kFloat), some = at::empty_like(all);
  QkvNormRope(packed, norm, norm, {}, {.q = all[0], .k = all[1], .v = all[2]});
  QkvNormRope(packed.narrow(2, 16, 32), {}, norm, {}, {.q = {}, .k = some[1], .v = some[2]});
  EXPECT_TRUE(at::equal(some.narrow(0, 1, 2), all.narrow(0, 1, 2)));
  EXPECT_TRUE(at::equal(HeadsNormRope(packed.narrow(2, 0, 16), 8, norm, {}), all[0].squeeze(2)));
}

TEST(QkvNormRopeTest, RefusesPlacesThatAreNotThoseOfTheProjection) {
  const at::Tensor packed = at::zeros({1, 3, 16}), place = at::zeros({1, 3, 1, 2, 8});
  const RotaryTables four{.cos = at::zeros({4, 4}), .sin = at::zeros({4, 4})};
  EXPECT_THROW(QkvNormRope(packed, {}, {}, {}, {.q = place, .k = place, .v = {}}), c10::Error);
  EXPECT_THROW(QkvNormRope(packed, {}, {}, {}, {.q = at::zeros({1, 2, 1, 2, 8}), .k = {}, .v = {}}), c10::Error);
  EXPECT_THROW(QkvNormRope(packed, {}, {}, {}, {.q = place.to(at::kDouble), .k = {}, .v = {}}), c10::Error);
  EXPECT_THROW(QkvNormRope(packed, {}, {}, {}, {.q = place.transpose(3, 4), .k = {}, .v = {}}), c10::Error);
  EXPECT_THROW(
      QkvNormRope(packed, {.weight = at::zeros({4}), .bias = {}, .eps = 0}, {}, {}, {.q = place, .k = {}, .v = {}}),
      c10::Error);
  EXPECT_THROW(QkvNormRope(packed, {}, {}, four, {.q = place, .k = {}, .v = {}}), c10::Error);
  QkvNormRope(packed, {}, {}, {}, {.q = place, .k = {}, .v = {}});
}

TEST(GeluTanhTest, FollowsTheDefinitionOverItsWholeRange) {
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = at::linspace(-12, 12, 4803, at::kDouble).to(type).reshape({1, 1, 4803});
    const at::Tensor wide = x.to(at::kDouble);
    const auto x_at = wide.accessor<double, 3>();
    const at::Tensor expected =
        ByDefinition(x, [&](int64_t b, int64_t n, int64_t c) { return GeluTanhByDefinition(x_at[b][n][c]); });
    for (const cpu::Isa isa : IsasOfThisMachine()) {
      // The error is relative if the value is not tiny, and 1e-7 absolute where 1 + tanh cancels in the reference.
      const at::Tensor error = (cpu::GeluTanh(x, isa).to(at::kDouble) - expected).abs() / (expected.abs() + 0.05);
      EXPECT_LE(error.max().item<double>(), Tolerance(type)) << type << " instruction set " << static_cast<int>(isa);
    }
  }
}

TEST(GegluTanhTest, IsTheActivationOfOneHalfTimesTheOther) {
  for (const at::ScalarType type : kTypes) {
    const std::vector<at::Tensor> halves = Random({2, 5, 96}, type).chunk(2, -1);
    const at::Tensor expected = reference::GegluTanh(halves[0].to(at::kDouble), halves[1].to(at::kDouble));
    EXPECT_LT(WorstError(GegluTanh(halves[0], halves[1]), expected), 2 * Tolerance(type)) << type;
  }
  EXPECT_THROW(GegluTanh(at::zeros({2, 4}), at::zeros({2, 1})), c10::Error);
}

TEST(SwiGluTest, IsTheActivationOfOneHalfTimesTheOther) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t channels : {1, 7, 48, 301}) {
      const at::Tensor product = 4 * Random({2, 5, 2 * channels}, type);
      const std::vector<at::Tensor> halves = product.chunk(2, -1);
      const at::Tensor expected = reference::SwiGlu(halves[0].to(at::kDouble), halves[1].to(at::kDouble));
      EXPECT_LT(WorstError(SwiGlu(halves[0], halves[1]), expected), 2 * Tolerance(type)) << type << channels;
      for (const cpu::Isa isa : IsasOfThisMachine()) {
        const at::Tensor dense = cpu::SwiGlu(halves[0].contiguous(), halves[1].contiguous(), isa);
        EXPECT_LT(WorstError(dense, expected), 2 * Tolerance(type)) << type << " " << static_cast<int>(isa);
        EXPECT_TRUE(at::equal(cpu::SwiGlu(halves[0], halves[1], isa), dense)) << type << channels;
        const at::Tensor apart = halves[1].transpose(1, 2).contiguous().transpose(1, 2);
        EXPECT_TRUE(at::equal(cpu::SwiGlu(halves[0], apart, isa), dense)) << type << channels;
      }
    }
  }
  EXPECT_EQ(SwiGlu(at::zeros({2, 0, 4}), at::zeros({2, 0, 4})).sizes(), (std::vector<int64_t>{2, 0, 4}));
  EXPECT_THROW(SwiGlu(at::zeros({2, 4}), at::zeros({2, 1})), c10::Error);
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

// Adjacent fp32 numbers of all magnitudes but the smallest. A version that multiplies parts of its operands must not
// lose any of them.
at::Tensor RandomOfManySizes(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble).mul(at::exp2(at::empty(sizes, at::kDouble).uniform_(-140, 20))).to(at::kFloat);
}

TEST(LinearProductTest, OfFp32HasTheErrorOfFp32OnEveryInstructionSet) {
  at::manual_seed(8);
  constexpr double kRounding = 0x1p-24;
  for (const cpu::Isa isa : IsasOfThisMachine()) {
    for (const int64_t depth : {1, 40, 1700}) {
      for (const int64_t rows : {1, 17, 130}) {
        for (const bool many_sizes : {false, true}) {
          const at::Tensor x = many_sizes ? RandomOfManySizes({rows, depth}) : Random({rows, depth}, at::kFloat);
          const at::Tensor weight = many_sizes ? RandomOfManySizes({70, depth}) : Random({70, depth}, at::kFloat);
          const at::Tensor wide = x.to(at::kDouble), turned = weight.to(at::kDouble).t();
          const at::Tensor sum_of_sizes = at::matmul(wide.abs(), turned.abs());
          // Half a unit in the last place for each sum, for the product, and for the omitted parts; numbers below
          // 2^-110 and sums below 2^-126 may lose all their bits.
          const at::Tensor allowed =
              sum_of_sizes * kRounding * static_cast<double>(depth + 2) +
              0x1p-110 * (1 + wide.abs().sum(1, /*keepdim=*/true) + turned.abs().sum(0, /*keepdim=*/true));
          const at::Tensor product = cpu::LinearProduct(x, weight, std::nullopt, isa);
          const at::Tensor error = (product.to(at::kDouble) - at::matmul(wide, turned)).abs();
          EXPECT_TRUE((error <= allowed).all().item<bool>())
              << "instruction set " << static_cast<int>(isa) << ", depth " << depth << ", rows " << rows
              << (many_sizes ? ", of many sizes" : "") << ": at most " << (error / allowed).max().item<double>()
              << " of what is allowed";
        }
      }
    }
  }
}

// Returns an fp32 weight whose columns from `first` on are rounded to `type`, as if that were the type in their file.
at::Tensor WithNumbersOf(at::ScalarType type, const at::Tensor& weight, int64_t first) {
  at::Tensor result = weight.clone();
  const at::Tensor part = result.slice(1, first);
  part.copy_(part.to(type));
  return result;
}

// A version may multiply weights with fewer bits in fewer parts, but the product must not change: these rows of the
// weight give the same results in a weight whose other rows need all bits.
TEST(LinearProductTest, WeightsOfFewerBitsChangeNoBitOnAnyInstructionSet) {
  at::manual_seed(9);
  for (const cpu::Isa isa : IsasOfThisMachine()) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      for (const int64_t depth : {40, 512, 1100, 1700}) {
        const at::Tensor full = Random({70, depth}, at::kFloat);
        for (const int64_t first : {int64_t{0}, std::min<int64_t>(depth, 600)}) {
          const at::Tensor x = Random({37, depth}, at::kFloat), few = WithNumbersOf(type, full, first);
          at::Tensor mixed = few.clone();
          for (const int64_t row : {31, 63, 69}) mixed[row].copy_(full[row]);
          const at::Tensor product = cpu::LinearProduct(x, few, std::nullopt, isa);
          const at::Tensor expected = cpu::LinearProduct(x, mixed, std::nullopt, isa);
          for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{0, 31}, {32, 63}, {64, 69}}) {
            EXPECT_TRUE(at::equal(product.slice(1, begin, end), expected.slice(1, begin, end)))
                << "instruction set " << static_cast<int>(isa) << ", " << type << ", depth " << depth << " from "
                << first;
          }
          const at::Tensor error =
              (product.to(at::kDouble) - at::matmul(x.to(at::kDouble), few.to(at::kDouble).t())).abs();
          const at::Tensor sum_of_sizes = at::matmul(x.to(at::kDouble).abs(), few.to(at::kDouble).abs().t());
          EXPECT_TRUE((error <= sum_of_sizes * 0x1p-24 * static_cast<double>(depth + 2)).all().item<bool>());
        }
      }
    }
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

// bf16 products are summed in fp32 and rounded once; both layouts agree except for the order of the sum. Some versions
// process the greater depth in slices.
TEST(PackWeightTest, GivesTheProductOfThePlainWeight) {
  at::manual_seed(10);
  for (const at::ScalarType type : kTypes) {
    for (const auto& [rows, depth] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 200}, {3, 200}, {300, 200}, {2049, 200}, {1, 3690}, {700, 3690}}) {
      if (depth > 200 && type == at::kDouble) continue;
      const at::Tensor x = Random({rows, depth}, type);
      const at::Tensor weight = Random({130, depth}, type);
      const at::Tensor bias = Random({130}, type);
      const at::Tensor packed = PackWeight(weight);
      const at::Tensor expected = LinearProduct(x.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble));
      const at::Tensor product = LinearProduct(x, packed, bias);
      ASSERT_EQ(product.sizes(), expected.sizes());
      // The rounding errors of a sum in fp32 grow with the root of its terms. A narrower instruction set has fewer
      // partial sums, each of more terms.
      const double terms = static_cast<double>(depth) / 200;
      const double tolerance = Tolerance(type) * (type == at::kFloat ? std::sqrt(terms) : 1);
      EXPECT_LE(WorstError(product, expected), tolerance) << type << " " << rows;
      EXPECT_LE(WorstError(LinearProduct(x, packed, std::nullopt), expected - bias.to(at::kDouble)), tolerance);
      EXPECT_TRUE(at::equal(LinearGeluTanh(x, packed, bias), GeluTanh(product))) << type << " " << rows;
    }
  }
}

TEST(PackWeightTest, IsUnpackedBitByBitOnEveryInstructionSet) {
  at::manual_seed(12);
  for (const cpu::Isa isa : IsasOfThisMachine()) {
    for (const int64_t depth : {1, 40, 700, 3690}) {
      const at::Tensor full = Random({70, depth}, at::kFloat);
      std::vector<at::Tensor> weights = {full, full.to(at::kDouble), full.to(at::kBFloat16)};
      for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
        for (const int64_t first : {int64_t{0}, depth / 2}) weights.push_back(WithNumbersOf(type, full, first));
        weights.push_back(WithNumbersOf(type, full.clamp_min(0), 0).neg());
      }
      weights.push_back(full.clone().fill_(std::numeric_limits<float>::infinity()));
      weights.push_back(full.clone().fill_(0x1p-149f));
      for (const at::Tensor& weight : weights) {
        const at::Tensor unpacked = cpu::UnpackWeight(cpu::PackWeight(weight, isa), isa);
        EXPECT_TRUE(at::equal(unpacked.view(at::kByte), weight.contiguous().view(at::kByte)))
            << "instruction set " << static_cast<int>(isa) << ", " << weight.scalar_type() << ", depth " << depth;
      }
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

// Compares the gradient of f in every input, computed in fp32 through the operator, with central differences in fp64.
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

// Both versions round each product separately, so they agree to the last bit. The CPU version splits tensors of this
// size over threads.
TEST(WeightedSumsTest, IsTheReferenceBitForBit) {
  at::manual_seed(11);
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    for (const int64_t columns : {1, 7, 1024, 40001}) {
      const at::Tensor x = Random({2, columns}, type), y = Random({2, columns}, type);
      const at::Tensor apart = Random({columns, 2}, type).t();
      const std::vector<double> weights = {0.7, 0, -1.3, 0, 1e-3, 2};
      at::Tensor state = at::ones({2}, at::kLong), expected_state = state.clone();
      const std::vector<at::Tensor> sums = WeightedSums({x, y, apart}, weights, state);
      const std::vector<at::Tensor> expected = reference::WeightedSums({x, y, apart}, weights, expected_state);
      ASSERT_EQ(sums.size(), 2);
      for (size_t s = 0; s < 2; ++s) EXPECT_TRUE(at::equal(sums[s], expected[s])) << type << " " << columns;
      EXPECT_LT(WorstError(sums[0], 0.7 * x.to(at::kDouble) - 1.3 * apart.to(at::kDouble)), Tolerance(type));
      EXPECT_TRUE(at::equal(state, expected_state));
      EXPECT_EQ(state[0].item<int64_t>(), 1);
    }
  }
}

TEST(WeightedSumsTest, ItsStateDistinguishesBitsAndFindsWhatIsNotFinite) {
  const at::Tensor x = Random({3, 1000}, at::kFloat);
  const auto state_of = [](const at::Tensor& of) {
    at::Tensor state = at::ones({2}, at::kLong);
    WeightedSums({of}, {1.0}, state);
    return state;
  };
  const at::Tensor state = state_of(x);
  EXPECT_TRUE(at::equal(state_of(x.clone()), state));
  at::Tensor other = x.clone();
  std::swap(other.mutable_data_ptr<float>()[5], other.mutable_data_ptr<float>()[2000]);
  EXPECT_FALSE(at::equal(state_of(other), state));
  other = x.clone();
  other.mutable_data_ptr<float>()[2999] = std::nextafter(other.mutable_data_ptr<float>()[2999], 9.0F);
  EXPECT_FALSE(at::equal(state_of(other), state));
  for (const float value : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    other.mutable_data_ptr<float>()[1234] = value;
    EXPECT_EQ(state_of(other)[0].item<int64_t>(), 0);
    EXPECT_EQ(WeightedSums({x, other}, {1.0, 0.0}, std::nullopt)[0].isfinite().all().item<bool>(), true);
  }
}

TEST(WeightedSumsTest, RefusesWhatDoesNotFitTogether) {
  const at::Tensor x = at::zeros({4}), state = at::ones({2}, at::kLong);
  EXPECT_THROW(WeightedSums({x, at::zeros({5})}, {1, 1}, std::nullopt), c10::Error);
  EXPECT_THROW(WeightedSums({x, x.to(at::kDouble)}, {1, 1}, std::nullopt), c10::Error);
  EXPECT_THROW(WeightedSums({x}, {1, 1, 1}, std::nullopt), c10::Error);
  EXPECT_THROW(WeightedSums({x.to(at::kBFloat16)}, {1}, std::nullopt), c10::Error);
  EXPECT_THROW(WeightedSums({x}, {1}, state.to(at::kInt)), c10::Error);
  EXPECT_THROW(WeightedSums({}, {}, std::nullopt), c10::Error);
}

TEST(GradientTest, OfEachOperatorAgreesWithFiniteDifferences) {
  at::manual_seed(8);
  const at::Tensor x = at::randn({2, 3, 16}, at::kDouble);
  const at::Tensor y = at::randn({2, 3, 16}, at::kDouble);
  const at::Tensor vector = at::randn({2, 16}, at::kDouble);
  const at::Tensor weight = at::randn({16}, at::kDouble);
  ExpectGradient([](const auto& in) { return LayerNormModulate(in[0], in[1], in[2], 1e-6); }, {x, vector, vector});
  ExpectGradient([](const auto& in) { return LayerNormShift(in[0], in[1], in[2], 1e-6); }, {x, weight, vector});
  ExpectGradient([](const auto& in) { return GatedResidual(in[0], in[1], in[2]); }, {x, vector, y});
  ExpectGradient([](const auto& in) { return GegluTanh(in[0], in[1]); }, {x, y});
  ExpectGradient([](const auto& in) { return SwiGlu(in[0], in[1]); }, {x, y});
  ExpectGradient([](const auto& in) { return WeightedSums(in, {0.5, -2.0}, std::nullopt)[0]; }, {x, y});
  ExpectGradient(
      [](const auto& in) {
        const auto [sum, normalised] = GatedResidualNormModulate(in[0], in[1], in[2], in[3], in[4], 1e-6);
        return at::cat({sum, normalised});
      },
      {x, vector, y, vector, vector});
  ExpectGradient(
      [](const auto& in) {
        const auto [sum, normalised] = ResidualNorm(in[0], in[1], in[2], in[3], 1e-6);
        return at::cat({sum, normalised});
      },
      {x, y, weight, weight});
  // Two heads of four channels; two projections into one buffer.
  const RotaryTables angles = Angles(3, 4, at::kDouble);
  ExpectGradient(
      [&](const auto& in) {
        const at::ScalarType type = in[0].scalar_type();
        const RotaryTables rotary{.cos = angles.cos.to(type), .sin = angles.sin.to(type)};
        const HeadNorm rms{.weight = in[2], .bias = {}, .eps = 1e-6},
            layer{.weight = in[2], .bias = in[3], .eps = 1e-6};
        at::Tensor buffer = at::empty({3, 2, 6, 1, 2, 4}, type);
        for (const int64_t i : {0, 1}) {
          const auto place = [&](int64_t tensor) { return buffer[tensor].narrow(1, 3 * i, 3); };
          QkvNormRope(in[i], rms, layer, rotary, {.q = place(0), .k = place(1), .v = place(2)});
        }
        return buffer;
      },
      {at::randn({2, 3, 24}, at::kDouble), at::randn({2, 3, 24}, at::kDouble), at::randn({4}, at::kDouble),
       at::randn({4}, at::kDouble)});
  ExpectGradient([](const auto& in) { return GeluTanh(in[0]); }, {x});
  ExpectGradient([](const auto& in) { return RmsNorm(in[0], in[1], 1e-6); }, {x, weight});
  ExpectGradient([](const auto& in) { return LinearProduct(in[0], in[1], in[2]); },
                 {x, at::randn({5, 16}, at::kDouble), at::randn({5}, at::kDouble)});
  ExpectGradient([](const auto& in) { return LinearGeluTanh(in[0], in[1], in[2]); },
                 {x, at::randn({5, 16}, at::kDouble), at::randn({5}, at::kDouble)});
}

}  // namespace
}  // namespace tessera::kernels
