// Compiled together with kernels/ops.cc under one TESSERA_PLANT_ATTENTION_… symbol: shows that the comparison of
// attention_test.cc would notice that mistake in every type.
#include <gtest/gtest.h>

#include "kernels/attention_test_cases.h"
#include "kernels/ops.h"

namespace tessera {
namespace {

TEST(PlantedAttentionTest, TheComparisonWithTheDefinitionTurnsRed) {
  constexpr double kLoosestTolerance = 8e-3;  // bf16's
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const AttentionCase c = ToType(MakeAttentionCase({.tokens = 9, .keys = 50, .head_dim = 24, .masked = true}), type);
    const at::Tensor actual = Attention(c.q, c.k, c.v, c.key_bias, c.scale);
    EXPECT_GT(WorstError(actual, AttentionByDefinition(c)), kLoosestTolerance) << type;
  }
}

}  // namespace
}  // namespace tessera
