#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <string>

#include "kernels/cpu/operators.h"
#include "kernels/ops.h"
#include "kernels/reference/operators.h"
#include "tests/support/attention_test_cases.h"
#include "tests/support/instruction_sets.h"

namespace tessera::kernels {
namespace {

// Weights and sums are rounded in the dtype's precision. Errors are relative to the largest output, which in the
// longest case is the mean of thousands of values and twenty times smaller than they are.
constexpr double kFp64Tolerance = 1e-14;
constexpr double kFp32Tolerance = 5e-6;
// Weights and output are rounded to 8 bits (2^-9 each); the rest is in fp32. Inputs are rounded before both sides.
constexpr double kBf16Tolerance = 8e-3;

at::Tensor Attend(const AttentionCase& c) { return Attention(c.q, c.k, c.v, c.key_bias, c.scale); }

const std::vector<AttentionSizes>& Sizes() {
  static const std::vector<AttentionSizes> sizes = {
      {.tokens = 1, .keys = 1},
      {.tokens = 1, .keys = 300, .head_dim = 72, .masked = true},
      {.batch = 1, .tokens = 41, .keys = 33, .heads = 2, .head_dim = 24},
      {.batch = 1, .tokens = 130, .keys = 2311, .heads = 1, .head_dim = 72},
      {.batch = 2, .tokens = 67, .keys = 300, .heads = 2, .head_dim = 72, .masked = true},
      {.batch = 3, .tokens = 32, .keys = 256, .heads = 2, .head_dim = 64},
      {.batch = 1, .tokens = 33, .keys = 257, .heads = 2, .head_dim = 88, .masked = true},
      {.batch = 1, .tokens = 9, .keys = 50, .heads = 1, .head_dim = 128},
      {.batch = 1, .tokens = 9, .keys = 50, .heads = 1, .head_dim = 17},
      {.batch = 1, .tokens = 9, .keys = 50, .heads = 2, .head_dim = 1},
  };
  return sizes;
}

std::string Describe(const AttentionSizes& s) {
  return std::to_string(s.batch) + " x " + std::to_string(s.tokens) + " tokens, " + std::to_string(s.keys) + " keys, " +
         std::to_string(s.heads) + " heads of " + std::to_string(s.head_dim) + (s.masked ? ", masked" : "");
}

TEST(AttentionTest, Fp64FollowsTheDefinition) {
  for (const AttentionSizes& sizes : Sizes()) {
    const AttentionCase c = MakeAttentionCase(sizes);
    EXPECT_LE(WorstError(Attend(c), AttentionByDefinition(c)), kFp64Tolerance) << Describe(sizes);
  }
}

TEST(AttentionTest, Fp32FollowsTheDefinitionOnEveryInstructionSet) {
  for (const AttentionSizes& sizes : Sizes()) {
    const AttentionCase c = ToType(MakeAttentionCase(sizes), at::kFloat);
    const at::Tensor expected = AttentionByDefinition(c);
    for (const cpu::Isa isa : IsasOfThisMachine()) {
      const at::Tensor actual = cpu::Attention(c.q, c.k, c.v, c.key_bias, c.scale, isa);
      EXPECT_LE(WorstError(actual, expected), kFp32Tolerance)
          << Describe(sizes) << ", instruction set " << static_cast<int>(isa);
    }
  }
}

TEST(AttentionTest, Bf16FollowsTheDefinitionOnEveryInstructionSet) {
  for (const AttentionSizes& sizes : Sizes()) {
    const AttentionCase c = ToType(MakeAttentionCase(sizes), at::kBFloat16);
    const at::Tensor expected = AttentionByDefinition(c);
    for (const cpu::Isa isa : IsasOfThisMachine()) {
      const at::Tensor actual = cpu::Attention(c.q, c.k, c.v, c.key_bias, c.scale, isa);
      EXPECT_EQ(actual.scalar_type(), at::kBFloat16);
      EXPECT_LE(WorstError(actual, expected), kBf16Tolerance)
          << Describe(sizes) << ", instruction set " << static_cast<int>(isa);
    }
  }
}

TEST(AttentionTest, MaskedKeysDoNotMoveTheResult) {
  AttentionCase c = ToType(MakeAttentionCase({.keys = 300, .head_dim = 72, .masked = true}), at::kFloat);
  const at::Tensor before = Attend(c);
  c.k.mul_(at::where(c.key_bias->lt(-1.0), 2.0, 1.0).to(at::kFloat).unsqueeze(2).unsqueeze(3));
  c.v.add_(at::where(c.key_bias->lt(-1.0), 5.0, 0.0).to(at::kFloat).unsqueeze(2).unsqueeze(3));
  EXPECT_LE(WorstError(Attend(c), before), kFp32Tolerance);
}

TEST(AttentionTest, ABiasThatALargeScoreOvercomesIsHonoured) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    AttentionCase c = MakeAttentionCase({.batch = 1, .tokens = 8, .keys = 40, .heads = 1, .head_dim = 16});
    c.k.mul_(400.0);
    c.key_bias = at::zeros({1, 40}, at::kDouble);
    c.key_bias->narrow(1, 20, 20).fill_(-500.0);
    c = ToType(c, type);
    // Scores of several hundred have about three correct decimals in fp32.
    EXPECT_LE(WorstError(Attend(c), AttentionByDefinition(c)), 1e-2) << type;
  }
}

TEST(AttentionTest, AMaskOfEveryKeyLeavesPlainAttention) {
  AttentionCase c = ToType(MakeAttentionCase({.keys = 50, .head_dim = 24}), at::kFloat);
  const at::Tensor unmasked = Attend(c);
  c.key_bias = at::full({2, 50}, -10000.0, at::kFloat);
  // After adding 10000, scores of size one have 2^-10 of absolute precision.
  EXPECT_LE(WorstError(Attend(c), unmasked), 5e-3);
}

// In some rows a score far above all earlier ones occurs every few keys; in other rows it never does.
TEST(AttentionTest, ScoresThatGrowWithTheKeysAreWeighedLikeOthers) {
  for (const bool biased : {false, true}) {
    AttentionCase c = MakeAttentionCase({.batch = 1, .tokens = 40, .keys = 700, .heads = 2, .head_dim = 72});
    c.k.mul_(at::linspace(1, 60, 700, at::kDouble).view({1, 700, 1, 1}));
    if (biased) c.key_bias = at::linspace(-40, 0, 700, at::kDouble).view({1, 700});
    c = ToType(c, at::kBFloat16);
    const at::Tensor expected = AttentionByDefinition(c);
    for (const cpu::Isa isa : IsasOfThisMachine()) {
      EXPECT_LE(WorstError(cpu::Attention(c.q, c.k, c.v, c.key_bias, c.scale, isa), expected), kBf16Tolerance)
          << "instruction set " << static_cast<int>(isa) << ", bias " << biased;
    }
  }
}

TEST(AttentionTest, MinusInfinityRemovesAKey) {
  for (const cpu::Isa isa : IsasOfThisMachine()) {
    AttentionCase c = ToType(MakeAttentionCase({.batch = 1, .keys = 40, .head_dim = 24}), at::kBFloat16);
    c.key_bias = at::zeros({1, 40}, at::kBFloat16);
    c.key_bias->narrow(1, 0, 39).fill_(-std::numeric_limits<float>::infinity());
    const at::Tensor only_value = c.v.narrow(1, 39, 1).expand_as(c.q);
    EXPECT_LE(WorstError(cpu::Attention(c.q, c.k, c.v, c.key_bias, c.scale, isa), only_value), kBf16Tolerance);
  }
}

TEST(AttentionTest, StridedViewsOfOneProjectionGiveTheSameNumbers) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    at::manual_seed(3);
    const at::Tensor packed = at::randn({2, 45, 3, 4, 24}, at::kDouble).to(type);  // [b, n, {q, k, v}, h, d]
    const at::Tensor q = packed.select(2, 0);
    const at::Tensor k = packed.select(2, 1);
    const at::Tensor v = packed.select(2, 2);
    EXPECT_TRUE(at::equal(Attention(q, k, v, std::nullopt, 0.2),
                          Attention(q.contiguous(), k.contiguous(), v.contiguous(), std::nullopt, 0.2)))
        << type;
  }
}

TEST(AttentionTest, ALastDimensionWithAStrideIsAccepted) {
  const AttentionCase c = ToType(MakeAttentionCase({.keys = 20, .head_dim = 24}), at::kFloat);
  const at::Tensor every_second = at::stack({c.q, c.q}, -1).flatten(3).slice(3, 0, std::nullopt, 2);
  EXPECT_TRUE(at::equal(Attention(every_second, c.k, c.v, std::nullopt, c.scale), Attend(c)));
}

TEST(AttentionTest, NotANumberIsNotHidden) {
  for (const cpu::Isa isa : IsasOfThisMachine()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const AttentionCase c = ToType(MakeAttentionCase({.batch = 1, .keys = 40, .head_dim = 24}), type);
      c.q.select(1, 2).fill_(std::numeric_limits<float>::quiet_NaN());
      const at::Tensor out = cpu::Attention(c.q, c.k, c.v, std::nullopt, c.scale, isa);
      EXPECT_TRUE(out.select(1, 2).isnan().all().item<bool>()) << static_cast<int>(isa);
      EXPECT_FALSE(out.select(1, 3).isnan().any().item<bool>()) << static_cast<int>(isa);
    }
  }
}

TEST(AttentionTest, MismatchedKeysAndValuesAreRefused) {
  const at::Tensor q = at::ones({1, 4, 2, 8});
  const at::Tensor k = at::ones({1, 5, 2, 8});
  const at::Tensor v = at::ones({1, 6, 2, 8});
  EXPECT_THROW(Attention(q, k, v, std::nullopt, 1.0), c10::Error);
}

TEST(AttentionTest, GradientAgreesWithFiniteDifferences) {
  AttentionCase c = MakeAttentionCase({.batch = 2, .tokens = 3, .keys = 5, .heads = 2, .head_dim = 4, .masked = true});
  c.key_bias->add_(at::randn({2, 5}, at::kDouble));
  const at::Tensor direction = at::randn_like(c.q);
  const std::vector<at::Tensor> inputs = {c.q, c.k, c.v};
  for (const at::Tensor& input : inputs) input.requires_grad_();
  const std::vector<at::Tensor> gradients = torch::autograd::grad({(Attend(c) * direction).sum()}, inputs);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor step = at::randn_like(inputs[i]) * 1e-6;
    inputs[i].add_(step);
    const double above = (Attend(c) * direction).sum().item<double>();
    inputs[i].sub_(step * 2);
    const double below = (Attend(c) * direction).sum().item<double>();
    inputs[i].add_(step);
    const double expected = (gradients[i] * step).sum().item<double>();
    EXPECT_NEAR((above - below) / 2, expected, 1e-12) << "input " << i;  // |expected| is about 1e-6
  }
}

TEST(AttentionTest, GradientFlowsInFp32ThoughTheFastVersionHasNone) {
  const AttentionCase c = ToType(MakeAttentionCase({.keys = 20, .head_dim = 24}), at::kFloat);
  c.q.requires_grad_();
  const at::Tensor out = Attend(c);
  ASSERT_TRUE(out.requires_grad());
  EXPECT_GT(torch::autograd::grad({out.square().sum()}, {c.q})[0].abs().max().item<float>(), 0.0f);
}

}  // namespace
}  // namespace tessera::kernels
