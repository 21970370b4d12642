#include "parallel/qkv.h"

#include <gtest/gtest.h>

#include <cmath>

#include "parallel/attention/policies.h"
#include "tests/support/gradient_error.h"

namespace tessera::parallel {
namespace {

constexpr int64_t kHeads = 12, kHeadDim = 2, kText = 3, kImage = 5;

// Tokens of a text and an image with random projections that differ in every head.
struct JointTokens {
  explicit JointTokens(bool text_has_queries = true) : text_has_queries(text_has_queries) {
    const at::Tensor angles = Random({kText + kImage, kHeadDim / 2}, 4);
    cos = at::cos(angles);
    sin = at::sin(angles);
  }

  // Returns the given rows, text first. `packed` [b, tokens, 3·h·d] contains those rows.
  AttentionInput Of(const at::Tensor& packed, TokenSpan text, TokenSpan image) const {
    const auto projection = [&](int64_t row, int64_t place, int64_t count, const at::Tensor& norm) -> Projection {
      return {.packed = packed.narrow(1, row, count),
              // A head has two channels. With a smaller eps their LayerNorm would be a sign, whose gradient is zero.
              .query_norm = {.weight = norm, .bias = {}, .eps = 1},
              .key_norm = {.weight = norm + 1, .bias = norm, .eps = 1},
              .rotary = {.cos = cos.narrow(0, place, count), .sin = sin.narrow(0, place, count)}};
    };
    AttentionInput input{
        .projections = {projection(0, text.begin, text.count(), Random({kHeadDim}, 5)),
                        projection(text.count(), kText + image.begin, image.count(), Random({kHeadDim}, 6))},
        .head_dim = kHeadDim,
        .scale = 1 / std::sqrt(static_cast<double>(kHeadDim)),
        .queries = text_has_queries ? TokenRows::kTextThenImage : TokenRows::kImage,
        .keys = TokenRows::kTextThenImage};
    if (!text_has_queries) {
      Projection& own = input.projections[0];
      own.packed = own.packed.narrow(2, kHeads * kHeadDim, 2 * kHeads * kHeadDim);
      own.with_queries = false;
    }
    return input;
  }

  bool text_has_queries;
  at::Tensor cos, sin;
};

at::Tensor AllPacked(int64_t batch) { return Random({batch, kText + kImage, 3 * kHeads * kHeadDim}, 7); }

TEST(QkvOfTest, AProjectionThatIsReadyIsReadWhereItIs) {
  const at::Tensor packed = AllPacked(2);
  const Qkv qkv = QkvOf({.projections = {{.packed = packed}}, .head_dim = kHeadDim});
  for (const at::Tensor& part : {qkv.q, qkv.k, qkv.v}) EXPECT_TRUE(part.is_alias_of(packed));
  const at::Tensor together = at::cat({qkv.q, qkv.k, qkv.v}, 2).flatten(2);
  EXPECT_TRUE(at::equal(together, packed));
}

TEST(QkvOfTest, JoinsProjectionsOneAfterAnother) {
  const JointTokens tokens;
  const at::Tensor packed = AllPacked(2);
  const AttentionInput input = tokens.Of(packed, {0, kText}, {0, kImage});
  const Qkv joint = QkvOf(input);
  const auto alone = [&](int i) { return QkvOf({.projections = {input.projections[i]}, .head_dim = kHeadDim}); };
  const Qkv text = alone(0), image = alone(1);
  EXPECT_TRUE(at::equal(joint.q, at::cat({text.q, image.q}, 1)));
  EXPECT_TRUE(at::equal(joint.k, at::cat({text.k, image.k}, 1)));
  EXPECT_TRUE(at::equal(joint.v, at::cat({text.v, image.v}, 1)));
  EXPECT_FALSE(at::equal(joint.q, joint.k));
}

class UlyssesTest : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  JointTokens tokens() const { return JointTokens(std::get<1>(GetParam())); }
  TokenLayout layout() const {
    return *TokenLayout::Create({.image = kImage, .text = kText, .ulysses = ranks(), .text_work = 0});
  }
  // Returns the rank's rows of AllPacked.
  at::Tensor OwnPacked(int64_t batch, int rank) const {
    const TokenSpan text = layout().Text(0, rank), image = OwnImage(rank);
    const at::Tensor all = AllPacked(batch);
    return at::cat({all.narrow(1, text.begin, text.count()), all.narrow(1, kText + image.begin, image.count())}, 1);
  }
  TokenSpan OwnImage(int rank) const {
    const std::vector<TokenRun> runs = layout().Runs(TokenRows::kImage, layout().all(), 0, rank);
    return runs.empty() ? TokenSpan{0, 0} : runs[0].tokens;
  }
  AttentionInput OwnInput(const at::Tensor& packed, int rank) const {
    return tokens().Of(packed, layout().Text(0, rank), OwnImage(rank));
  }
};

// The ranks' results equal those of one rank that has all tokens and heads.
TEST_P(UlyssesTest, AttendsAsOneRankDoes) {
  LocalAttention local;
  const at::Tensor expected = local.Attend(0, tokens().Of(AllPacked(2), {0, kText}, {0, kImage}));
  RunRanks(ranks(), [&](ThreadRank& rank) {
    const TokenLayout cut = layout();
    UlyssesExchange exchange(cut, cut.all(), 0, rank.world());
    FreshStore fresh;
    LocalReader reader;
    PolicyAttention attention(exchange, fresh, reader);
    const at::Tensor read = attention.Attend(0, OwnInput(OwnPacked(2, rank.rank()), rank.rank()));
    const TokenSpan text = cut.Text(0, rank.rank()), image = OwnImage(rank.rank());
    const int64_t first = tokens().text_has_queries ? kText : 0;
    at::Tensor own = expected.narrow(1, first + image.begin, image.count());
    if (first > 0) own = at::cat({expected.narrow(1, text.begin, text.count()), own}, 1);
    ASSERT_EQ(read.sizes(), own.sizes());
    EXPECT_LT((read - own).abs().max().item<double>(), 1e-14);
  });
}

// Training uses the same layout in memory.
TEST_P(UlyssesTest, HasTheGradientOfItsProjections) {
  const std::vector<at::Tensor> xs = OnePerRank(ranks(), [&](int r) { return OwnPacked(1, r); });
  const Functional attend = [&](const at::Tensor& x, Communicator& group) {
    const TokenLayout cut = layout();
    UlyssesExchange exchange(cut, cut.all(), 0, group);
    FreshStore fresh;
    LocalReader reader;
    PolicyAttention attention(exchange, fresh, reader);
    return attention.Attend(0, OwnInput(x, group.rank()));
  };
  EXPECT_LT(GradientError(xs, false, attend), 10 * kGradientTolerance);
}

INSTANTIATE_TEST_SUITE_P(Ranks, UlyssesTest, testing::Combine(testing::Values(2, 3, 4), testing::Bool()));

TEST(UlyssesErrorsTest, NameHeadsThatDoNotDivide) {
  const TokenLayout cut = *TokenLayout::Create({.image = 4, .text = 0, .ulysses = 2, .text_work = 0});
  try {
    RunRanks(2, [&](ThreadRank& rank) {
      UlyssesExchange(cut, cut.all(), 0, rank.world())
          .ToHeads({.projections = {{.packed = at::zeros({1, 2, 3 * 3 * 4})}}, .head_dim = 4});
    });
    FAIL() << "three heads were divided among two ranks";
  } catch (const c10::Error& error) {
    EXPECT_STREQ(error.what_without_backtrace(), "3 heads are not divisible among 2 ranks");
  }
}

}  // namespace
}  // namespace tessera::parallel
