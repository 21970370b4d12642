#include "models/layers/linear.h"

#include <gtest/gtest.h>

#include "tests/support/random_tensor.h"

namespace tessera::models {
namespace {

// One of two ranks; the other's contribution to a sum is given.
class OneOfTwo final : public parallel::Communicator {
 public:
  explicit OneOfTwo(at::Tensor other) : other_(std::move(other)) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  void DoSum(const at::Tensor& in, const at::Tensor& out) override {
    at::add_out(const_cast<at::Tensor&>(out), in, other_);
  }

 private:
  at::Tensor other_;
};

TEST(LinearTest, PackedPartsAreTheSeparateProductsSideBySide) {
  ParamTable table(at::kDouble, at::kCPU);
  const Linear linear(ParamScope(table) / "attn", 4, {{"to_q", 3}, {"to_k", 5}});
  ASSERT_EQ(table.params().size(), 4);
  uint64_t seed = 0;
  for (const Param& param : table.params()) param.Value().copy_(Random(param.spec.shape, seed++));
  EXPECT_EQ(table.params()[1].spec.name, "attn.to_k.weight");

  parallel::SingleRank group;
  parallel::LocalAttention attention;
  const at::Tensor x = Random({2, 7, 4}, 9);
  const at::Tensor y = linear.Forward(x, {.attention = attention, .tensor = group, .world = group});
  const auto separate = [&](int i) {
    return at::matmul(x, table.params()[i].Value().t()) + table.params()[i + 2].Value();
  };
  EXPECT_LT((y - at::cat({separate(0), separate(1)}, -1)).abs().max().item<double>(), 1e-13);
}

TEST(LinearTest, PackingForInferenceChangesNoProduct) {
  ParamTable table(at::kBFloat16, at::kCPU);
  const Linear linear(ParamScope(table) / "attn", 96, {{"to_q", 80}, {"to_k", 80}});
  uint64_t seed = 0;
  for (const Param& param : table.params()) param.Value().copy_(Random(param.spec.shape, seed++));
  parallel::SingleRank group;
  parallel::LocalAttention attention;
  const parallel::ForwardContext context{.attention = attention, .tensor = group, .world = group};
  const at::Tensor x = Random({1, 50, 96}, 9).to(at::kBFloat16);
  const at::Tensor before = linear.Forward(x, context), activated = linear.ForwardGeluTanh(x, context);
  const c10::InferenceMode no_gradients;
  table.PackForInference();
  // Sums of 96 products in fp32, in another order, then rounded to 8 bits: one unit in the last place.
  const double largest = before.abs().max().item<double>();
  EXPECT_LE((linear.Forward(x, context).to(at::kDouble) - before).abs().max().item<double>(), largest / 128);
  EXPECT_LE((linear.ForwardGeluTanh(x, context).to(at::kDouble) - activated).abs().max().item<double>(), largest / 128);
}

TEST(LinearTest, ARowShardedProductAddsItsBiasOnceAfterTheSum) {
  ParamTable table(at::kDouble, at::kCPU);
  const Linear linear(ParamScope(table) / "out", 4, 3, {.role = LinearRole::kRow});
  const at::Tensor weight = table.params()[0].Value(), bias = table.params()[1].Value();
  weight.copy_(Random({3, 4}, 1));
  bias.copy_(Random({3}, 2));
  const at::Tensor x = Random({5, 4}, 3), other = Random({5, 3}, 4);
  OneOfTwo group(other);
  parallel::LocalAttention attention;
  const at::Tensor y = linear.Forward(x, {.attention = attention, .tensor = group, .world = group});
  EXPECT_LT((y - (at::matmul(x, weight.t()) + other + bias)).abs().max().item<double>(), 1e-13);
}

}  // namespace
}  // namespace tessera::models
