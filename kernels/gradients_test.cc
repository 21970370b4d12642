#include "kernels/gradients.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/operators.h"
#include "kernels/ops.h"
#include "kernels/reference/operators.h"
#include "tests/support/random_tensor.h"

namespace tessera::kernels {
namespace {

using Function = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

constexpr double kEps = 1e-6;
// More tokens than one piece of the row sums has; 131 is prime.
constexpr int64_t kImages = 2, kTokens = 131;
constexpr int64_t kWidths[] = {7, 16, 33, 72, 256};

// Relative to the largest gradient: a few fp32 roundings, including those of sums over all tokens; in bf16, one
// rounding to 8 bits and those of intermediate results.
double Tolerance(at::ScalarType type) { return type == at::kFloat ? 5e-6 : 1e-2; }

double WorstError(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual.to(at::kDouble) - expected).abs().max() / expected.abs().max().clamp_min(1e-3)).item<double>();
}

// Returns the gradients, with respect to the inputs, of the sum of the function's results, each multiplied by a
// different set of numbers.
std::vector<at::Tensor> GradientsOf(const Function& function, const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().requires_grad_());
  const std::vector<at::Tensor> results = function(leaves);
  std::vector<at::Tensor> directions;
  for (size_t i = 0; i < results.size(); ++i) {
    directions.push_back(Random(results[i].sizes(), 90 + i).to(at::kBFloat16).to(results[i].scalar_type()));
  }
  return torch::autograd::grad(results, leaves, directions);
}

// Compares with the gradients of the reference composition in fp64, from inputs that are rounded to the dtype.
void ExpectGradients(const Function& function, const Function& reference, const std::vector<at::Tensor>& inputs,
                     const std::string& name) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    std::vector<at::Tensor> rounded, exact;
    for (const at::Tensor& input : inputs) {
      rounded.push_back(input.to(type));
      exact.push_back(rounded.back().to(at::kDouble));
    }
    const std::vector<at::Tensor> actual = GradientsOf(function, rounded), expected = GradientsOf(reference, exact);
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_EQ(actual[i].scalar_type(), type);
      EXPECT_LE(WorstError(actual[i], expected[i]), Tolerance(type))
          << name << ", " << inputs[0].size(-1) << " channels, " << type << ", input " << i;
    }
  }
}

at::Tensor Tokens(int64_t width, uint64_t seed) { return Random({kImages, kTokens, width}, seed); }
at::Tensor Vectors(int64_t width, uint64_t seed) { return Random({kImages, width}, seed); }

std::vector<at::Tensor> Both(const std::tuple<at::Tensor, at::Tensor>& pair) {
  return {std::get<0>(pair), std::get<1>(pair)};
}

TEST(GradientsTest, OfANormAndItsModulationAreTheReferences) {
  for (const int64_t width : kWidths) {
    ExpectGradients([](const auto& in) { return std::vector{LayerNormModulate(in[0], in[1], in[2], kEps)}; },
                    [](const auto& in) { return std::vector{reference::LayerNormModulate(in[0], in[1], in[2], kEps)}; },
                    {Tokens(width, 1), Vectors(width, 2), Vectors(width, 3)}, "layer_norm_modulate");
  }
}

TEST(GradientsTest, OfAGatedResidualAreTheReferences) {
  for (const int64_t width : kWidths) {
    ExpectGradients([](const auto& in) { return std::vector{GatedResidual(in[0], in[1], in[2])}; },
                    [](const auto& in) { return std::vector{reference::GatedResidual(in[0], in[1], in[2])}; },
                    {Tokens(width, 1), Vectors(width, 2), Tokens(width, 3)}, "gated_residual");
  }
}

TEST(GradientsTest, OfAResidualAndItsNormAreTheReferences) {
  for (const int64_t width : kWidths) {
    ExpectGradients(
        [](const auto& in) { return Both(GatedResidualNormModulate(in[0], in[1], in[2], in[3], in[4], kEps)); },
        [](const auto& in) {
          return Both(reference::GatedResidualNormModulate(in[0], in[1], in[2], {}, {}, in[3], in[4], kEps));
        },
        {Tokens(width, 1), Vectors(width, 2), Tokens(width, 3), Vectors(width, 4), Vectors(width, 5)}, "with a gate");
    ExpectGradients(
        [](const auto& in) { return Both(GatedResidualNormModulate(in[0], {}, in[1], in[2], in[3], kEps)); },
        [](const auto& in) {
          return Both(reference::GatedResidualNormModulate(in[0], {}, in[1], {}, {}, in[2], in[3], kEps));
        },
        {Tokens(width, 1), Tokens(width, 2), Vectors(width, 3), Vectors(width, 4)}, "without a gate");
    ExpectGradients([](const auto& in) { return Both(ResidualNorm(in[0], in[1], in[2], in[3], kEps)); },
                    [](const auto& in) {
                      return Both(reference::GatedResidualNormModulate(in[0], {}, in[1], in[2], in[3], {}, {}, kEps));
                    },
                    {Tokens(width, 1), Tokens(width, 2), Random({width}, 3), Random({width}, 4)}, "of all images");
  }
}

TEST(GradientsTest, OfAResidualWhoseNormIsNotReadAreThoseOfTheSum) {
  const at::Tensor vectors = Vectors(16, 9).to(at::kFloat);
  ExpectGradients(
      [&](const auto& in) {
        const at::Tensor norm = vectors.to(in[0].scalar_type());
        return std::vector{std::get<0>(GatedResidualNormModulate(in[0], in[1], in[2], norm, norm, kEps))};
      },
      [](const auto& in) { return std::vector{reference::GatedResidual(in[0], in[1], in[2])}; },
      {Tokens(16, 1), Vectors(16, 2), Tokens(16, 3)}, "sum alone");
}

TEST(GradientsTest, OfGeluAreTheReferencesNearZeroAndFarFromIt) {
  const at::Tensor x = at::cat({at::linspace(-12, 12, 2001, at::kDouble), at::tensor({-1e4, 1e4, 0.0}, at::kDouble)});
  ExpectGradients([](const auto& in) { return std::vector{GeluTanh(in[0])}; },
                  [](const auto& in) { return std::vector{reference::GeluTanh(in[0])}; }, {x}, "gelu_tanh");
}

// Whole and partial blocks of queries, more queries than any version's products process without slices, heads that do
// and do not fill vectors, and a bias that excludes keys.
TEST(GradientsTest, OfAttentionAreTheReferences) {
  for (const int64_t tokens : {5, 96, 131, 2600}) {
    for (const int64_t d : {17, 64, 128}) {
      for (const bool masked : {false, true}) {
        at::Tensor bias = Random({kImages, 70}, 4);
        bias.narrow(1, 50, 20).fill_(-10000);
        const std::optional<at::Tensor> key_bias = masked ? std::optional(bias) : std::nullopt;
        const double scale = 1 / std::sqrt(static_cast<double>(d));
        ExpectGradients(
            [&](const auto& in) { return std::vector{Attention(in[0], in[1], in[2], key_bias, scale)}; },
            [&](const auto& in) { return std::vector{reference::Attention(in[0], in[1], in[2], key_bias, scale)}; },
            {Random({kImages, tokens, 3, d}, 1), Random({kImages, 70, 3, d}, 2), Random({kImages, 70, 3, d}, 3)},
            masked ? "attention with a bias" : "attention");
      }
    }
  }
}

// Blocks that are computed again then give the gradients of blocks whose activations were kept.
TEST(GradientsTest, InDoublesTheForwardPassHasTheBitsOfTheOneWithoutGradients) {
  const auto check = [](const std::vector<at::Tensor>& inputs, const auto& call, const auto& reference) {
    const at::NoGradGuard no_gradients;
    const at::Tensor plain = call(inputs), seed = at::cos(plain);
    std::vector<at::Tensor> results[2];
    {
      const at::AutoGradMode with_gradients(true);
      for (const bool is_reference : {false, true}) {
        std::vector<at::Tensor> leaves;
        for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().requires_grad_());
        const at::Tensor made = is_reference ? reference(leaves) : call(leaves);
        EXPECT_TRUE(is_reference || at::equal(made.detach(), plain));
        torch::autograd::backward({made}, {seed});
        for (const at::Tensor& leaf : leaves) results[is_reference ? 1 : 0].push_back(leaf.grad());
      }
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      ASSERT_TRUE(results[0][i].defined());
      EXPECT_LE(((results[0][i] - results[1][i]).abs().max() / results[1][i].abs().max()).item<double>(), 1e-13) << i;
    }
  };
  const auto random = [](at::IntArrayRef sizes, int seed) { return Random(sizes, seed).to(at::kDouble); };
  check(
      {random({2, 7, 300}, 1), random({50, 300}, 2), random({50}, 3)},
      [](const auto& in) { return LinearProduct(in[0], in[1], in[2]); },
      [](const auto& in) { return reference::LinearProduct(in[0], in[1], in[2]); });
  check(
      {random({7, 300}, 1), random({50, 300}, 2)},
      [](const auto& in) { return LinearProduct(in[0], in[1], std::nullopt); },
      [](const auto& in) { return reference::LinearProduct(in[0], in[1], std::nullopt); });
  const at::Tensor bias = random({2, 40}, 4);
  check(
      {random({2, 30, 3, 24}, 1), random({2, 40, 3, 24}, 2), random({2, 40, 3, 24}, 3)},
      [&](const auto& in) { return Attention(in[0], in[1], in[2], bias, 0.2); },
      [&](const auto& in) { return reference::Attention(in[0], in[1], in[2], bias, 0.2); });
}

TEST(GradientsTest, AreTheSameOnEveryInstructionSet) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = Tokens(33, 1).to(type), of = Tokens(33, 2).to(type), third = Tokens(33, 3).to(type);
    const at::Tensor vector = Vectors(33, 4).to(type);
    const auto all = [&](cpu::Isa isa) {
      const auto [of_x, of_shift, of_factor] = cpu::NormModulateBackward(of, third, x, vector, 1, kEps, isa);
      const auto [of_gate, of_y] = cpu::GatedResidualBackward(of, vector, x, isa);
      const auto heads = [&](const at::Tensor& tokens) { return tokens.view({kImages, kTokens, 3, 11}); };
      const auto [read, lse] = cpu::BiasedAttentionWithLse(heads(x), heads(of), heads(third), std::nullopt, 0.3, isa);
      const auto [of_q, of_k, of_v] =
          cpu::AttentionBackward(heads(of), heads(x), heads(of), heads(third), std::nullopt, read, lse, 0.3, isa);
      return std::vector{of_x, of_shift, of_factor, of_gate, of_y, cpu::GeluTanhBackward(of, x, isa), of_q, of_k, of_v};
    };
    const std::vector<at::Tensor> best = all(cpu::BestIsa());
    for (int isa = 0; isa < static_cast<int>(cpu::BestIsa()); ++isa) {
      const std::vector<at::Tensor> actual = all(static_cast<cpu::Isa>(isa));
      for (size_t i = 0; i < best.size(); ++i) {
        EXPECT_LE(WorstError(actual[i], best[i].to(at::kDouble)), Tolerance(type)) << isa << ", result " << i;
      }
    }
  }
}

TEST(GradientsTest, AreTheSameOnAnyNumberOfThreads) {
  const at::Tensor x = Tokens(256, 1).to(at::kFloat), of = Tokens(256, 2).to(at::kFloat);
  const at::Tensor vector = Vectors(256, 3).to(at::kFloat);
  const int threads = at::get_num_threads();
  std::vector<std::tuple<at::Tensor, at::Tensor, at::Tensor>> results;
  for (const int number : {1, 3}) {
    at::set_num_threads(number);
    results.push_back(cpu::NormModulateBackward(of, at::Tensor(), x, vector, 1, kEps, cpu::BestIsa()));
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(std::get<0>(results[0]), std::get<0>(results[1])));
  EXPECT_TRUE(at::equal(std::get<1>(results[0]), std::get<1>(results[1])));
  EXPECT_TRUE(at::equal(std::get<2>(results[0]), std::get<2>(results[1])));
}

}  // namespace
}  // namespace tessera::kernels
