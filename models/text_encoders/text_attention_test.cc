// TextAttention and SelectedStates.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "models/text_encoders/text_encoder.h"
#include "tests/support/random_tensor.h"

namespace tessera::models {
namespace {

constexpr int64_t kHeadDim = 4, kBatch = 2;

// softmax(q kᵀ · scale + bias) v, one sum after the other. bias [b, t].
at::Tensor PlainAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal, double scale,
                          const at::Tensor& bias) {
  const at::Tensor result = at::zeros_like(q);
  const int64_t t = q.size(1), heads = q.size(2) / kHeadDim, shared = heads / (k.size(2) / kHeadDim);
  const auto at = [](const at::Tensor& x, int64_t b, int64_t token, int64_t head, int64_t d) {
    return x[b][token][head * kHeadDim + d].item<double>();
  };
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t query = 0; query < t; ++query) {
        std::vector<double> weights;
        double sum = 0;
        for (int64_t key = 0; key < (causal ? query + 1 : t); ++key) {
          double score = bias.defined() ? bias[b][key].item<double>() : 0;
          for (int64_t d = 0; d < kHeadDim; ++d)
            score += scale * at(q, b, query, head, d) * at(k, b, key, head / shared, d);
          weights.push_back(std::exp(score));
          sum += weights.back();
        }
        for (int64_t d = 0; d < kHeadDim; ++d) {
          double read = 0;
          for (size_t key = 0; key < weights.size(); ++key) {
            read += weights[key] / sum * at(v, b, static_cast<int64_t>(key), head / shared, d);
          }
          result[b][query][head * kHeadDim + d] = read;
        }
      }
    }
  }
  return result;
}

struct AttentionCase {
  int64_t tokens, heads, key_heads;
  bool causal, has_bias;
};

class TextAttentionTest : public testing::TestWithParam<AttentionCase> {};

TEST_P(TextAttentionTest, IsTheSumByDefinition) {
  const auto [tokens, heads, key_heads, causal, has_bias] = GetParam();
  const at::Tensor q = Random({kBatch, tokens, heads * kHeadDim}, 1);
  const at::Tensor k = Random({kBatch, tokens, key_heads * kHeadDim}, 2);
  const at::Tensor v = Random({kBatch, tokens, key_heads * kHeadDim}, 3);
  const at::Tensor bias = has_bias ? Random({kBatch, tokens}, 4) : at::Tensor();
  at::Tensor added = has_bias ? bias.unsqueeze(1).unsqueeze(1) : at::Tensor();
  if (causal) added = has_bias ? added + CausalBias(q) : CausalBias(q);
  const at::Tensor actual = TextAttention(q, k, v, {.head_dim = kHeadDim, .scale = 0.3, .bias = added});
  EXPECT_LT((actual - PlainAttention(q, k, v, causal, 0.3, bias)).abs().max().item<double>(), 1e-13);
}

INSTANTIATE_TEST_SUITE_P(Cases, TextAttentionTest,
                         testing::Values(AttentionCase{5, 4, 4, false, false}, AttentionCase{5, 4, 4, true, false},
                                         AttentionCase{7, 6, 2, false, true}, AttentionCase{7, 6, 2, true, true},
                                         AttentionCase{3, 4, 1, true, false}, AttentionCase{1, 2, 1, true, true}));

// A padded text's tokens have the states of the text alone, wherever the padding is, and padding stays finite.
TEST(TextAttentionPaddingTest, PaddingOnEitherSideChangesNoToken) {
  constexpr int64_t kTokens = 4, kPadding = 3;
  const auto with_padding = [](const at::Tensor& x, bool left) {
    return at::constant_pad_nd(x, left ? at::IntArrayRef({0, 0, kPadding, 0}) : at::IntArrayRef({0, 0, 0, kPadding}),
                               9);
  };
  const at::Tensor q = Random({1, kTokens, 2 * kHeadDim}, 1), k = Random({1, kTokens, kHeadDim}, 2);
  const at::Tensor v = Random({1, kTokens, kHeadDim}, 3);
  const at::Tensor alone = TextAttention(q, k, v, {.head_dim = kHeadDim, .bias = CausalBias(q)});
  for (const bool left : {false, true}) {
    const at::Tensor mask = at::zeros({1, kTokens + kPadding}, at::kLong);
    mask.narrow(1, left ? kPadding : 0, kTokens).fill_(1);
    const at::Tensor queries = with_padding(q, left);
    const at::Tensor padded =
        TextAttention(queries, with_padding(k, left), with_padding(v, left),
                      {.head_dim = kHeadDim, .bias = CausalBias(queries) + PaddingBias(mask, at::kDouble)});
    EXPECT_TRUE(at::isfinite(padded).all().item<bool>());
    const at::Tensor tokens = padded.narrow(1, left ? kPadding : 0, kTokens);
    EXPECT_LT((tokens - alone).abs().max().item<double>(), 1e-14) << left;
  }
}

TEST(SelectedStatesTest, StatesAreSideBySideInTheOrderOfTheSelection) {
  SelectedStates states({2, -1, 0}, 3);
  for (int64_t i = 0; i <= 3; ++i) states.Add(i, at::full({1, 2, 2}, static_cast<double>(i)));
  const at::Tensor joined = states.Joined();
  ASSERT_EQ(joined.sizes(), at::IntArrayRef({1, 2, 6}));
  EXPECT_TRUE(at::equal(joined[0][1], at::tensor({2.0, 2.0, 3.0, 3.0, 0.0, 0.0}, joined.options())));
}

}  // namespace
}  // namespace tessera::models
