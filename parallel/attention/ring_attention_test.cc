// Compares ring attention and its gradient with those of one rank that has every token.
#include "parallel/attention/ring_attention.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kernels/ops.h"
#include "tests/support/random_tensor.h"
#include "tests/support/thread_ranks.h"

namespace tessera::parallel {
namespace {

constexpr double kScale = 0.4;

struct Case {
  const char* name;
  std::vector<int64_t> queries, keys;  // of each rank
};

class RingAttentionTest : public testing::TestWithParam<Case> {};

// The two differ only in the order of sums.
void ReadAndPassGradientsBack(const Case& rows, at::ScalarType type, double tolerance) {
  const auto total = [](const std::vector<int64_t>& of) { return std::accumulate(of.begin(), of.end(), int64_t{0}); };
  const auto random = [&](int64_t tokens, uint64_t seed) { return Random({2, tokens, 3, 4}, seed).to(type); };
  const at::Tensor q = random(total(rows.queries), 1).requires_grad_(true);
  const at::Tensor k = random(total(rows.keys), 2).requires_grad_(true);
  const at::Tensor v = random(total(rows.keys), 3).requires_grad_(true);
  const at::Tensor of_result = random(total(rows.queries), 4);
  const at::Tensor expected = kernels::Attention(q, k, v, std::nullopt, kScale);
  expected.backward(of_result);

  RunRanks(static_cast<int>(rows.queries.size()), [&](ThreadRank& rank) {
    const auto own = [&](const at::Tensor& whole, const std::vector<int64_t>& of) {
      const auto r = static_cast<std::ptrdiff_t>(rank.rank());
      return whole.detach().narrow(1, std::accumulate(of.begin(), of.begin() + r, int64_t{0}),
                                   of[static_cast<size_t>(r)]);
    };
    const auto leaf = [&](const at::Tensor& whole, const std::vector<int64_t>& of) {
      return own(whole, of).clone().requires_grad_(true);
    };
    const auto compare = [&](const char* what, const at::Tensor& actual, const at::Tensor& wanted) {
      ASSERT_EQ(actual.sizes(), wanted.sizes()) << what;
      const double error = wanted.numel() == 0 ? 0 : (actual - wanted).abs().max().item<double>();
      EXPECT_LE(error, tolerance) << what;
    };
    const at::Tensor own_q = leaf(q, rows.queries), own_k = leaf(k, rows.keys), own_v = leaf(v, rows.keys);
    RingBuffers buffers;
    const at::Tensor result = RingAttention(own_q, own_k, own_v, kScale, rows.keys, rank.world(), buffers);
    compare("result", result.detach(), own(expected, rows.queries));
    result.backward(own(of_result, rows.queries).contiguous());
    compare("gradient of queries", own_q.grad(), own(q.grad(), rows.queries));
    compare("gradient of keys", own_k.grad(), own(k.grad(), rows.keys));
    compare("gradient of values", own_v.grad(), own(v.grad(), rows.keys));
    const at::NoGradGuard no_gradients;
    compare("result without gradients", RingAttention(own_q, own_k, own_v, kScale, rows.keys, rank.world(), buffers),
            own(expected, rows.queries));
  });
}

TEST_P(RingAttentionTest, ReadsAndPassesGradientsBackAsOneRankDoes) {
  ReadAndPassGradientsBack(GetParam(), at::kDouble, 1e-13);
}

// Uses the CPU kernel for the backward pass in fp32.
TEST_P(RingAttentionTest, DoesSoInSinglePrecision) { ReadAndPassGradientsBack(GetParam(), at::kFloat, 5e-6); }

INSTANTIATE_TEST_SUITE_P(Rows, RingAttentionTest,
                         testing::Values(Case{"even", {3, 3}, {3, 3}}, Case{"uneven", {4, 1, 2}, {2, 5, 1}},
                                         Case{"a_rank_without_tokens", {3, 0, 2}, {3, 0, 2}},
                                         Case{"ranks_without_keys_or_queries", {0, 4, 1}, {5, 0, 2}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::parallel
