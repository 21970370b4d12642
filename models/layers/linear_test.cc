#include "models/layers/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

#include "kernels/ops.h"
#include "kernels/quantized/quant_rows.h"
#include "kernels/quantized_ops.h"
#include "models/layers/folded_input.h"
#include "models/loading/eight_bits.h"
#include "tests/support/random_tensor.h"
#include "tests/support/tensor_bytes.h"

namespace tessera::models {
namespace {

// One of two ranks; the other rank's contribution to a sum is given.
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
  // Sums of 96 products in fp32, in a different order, then rounded to 8 bits: one unit in the last place.
  const double largest = before.abs().max().item<double>();
  EXPECT_LE((linear.Forward(x, context).to(at::kDouble) - before).abs().max().item<double>(), largest / 128);
  EXPECT_LE((linear.ForwardGeluTanh(x, context).to(at::kDouble) - activated).abs().max().item<double>(), largest / 128);
}

TEST(EightBitsTest, AWeightIsWithinHalfOfItsRowsScale) {
  at::Tensor rows = Random({3, 50}, 1);
  rows[1].mul_(1000);
  rows[2].zero_();
  const at::Tensor scales = ScalesOf(rows.abs().amax(1)), values = ToEightBits(rows, scales);
  EXPECT_EQ(values.scalar_type(), at::kChar);
  EXPECT_EQ(values.abs().amax(1).slice(0, 0, 2).to(at::kLong).sum().item<int64_t>(), 2 * 127);
  const at::Tensor error = (FromEightBits(values, scales, at::kDouble) - rows).abs();
  EXPECT_LE((error - 0.5001 * scales).max().item<double>(), 0);
  EXPECT_GT((error / scales).max().item<double>(), 0.4);
  EXPECT_EQ(error[2].max().item<double>(), 0);
  // Ties round to even.
  const at::Tensor one = at::ones({1, 1}, at::kFloat);
  const at::Tensor ties = ToEightBits(at::tensor({0.5, 1.5, -2.5, 126.9}).unsqueeze(0), one);
  EXPECT_TRUE(at::equal(ties, at::tensor({0, 2, -2, 127}, at::kChar).unsqueeze(0)));
}

TEST(EightBitsTest, AProductIsThatOfTheDequantisedWeightAndKeepsNoCopyOfIt) {
  const at::Tensor rows = Random({6, 4}, 1), bias = Random({6}, 2), g = Random({2, 3, 6}, 3);
  const at::Tensor scales = ScalesOf(rows.abs().amax(1)), values = ToEightBits(rows, scales);
  const at::Tensor weight = FromEightBits(values, scales, at::kFloat).to(at::kDouble);
  const at::Tensor x = Random({2, 3, 4}, 4).requires_grad_(true);
  const TensorBytes bytes;
  const int64_t before = bytes.now();
  const at::Tensor y = kernels::QuantProduct(
      x, {.type = kernels::QuantType::kInt8, .values = values, .scales = scales, .table = {}, .in = 4}, bias);
  EXPECT_EQ(bytes.now() - before, static_cast<int64_t>(y.nbytes()));
  EXPECT_LT((y - (at::matmul(x, weight.t()) + bias)).abs().max().item<double>(), 1e-14);
  y.backward(g);
  EXPECT_LT((x.grad() - at::matmul(g, weight)).abs().max().item<double>(), 1e-14);
}

// Gives each parameter other numbers, and quantizes those of quantized ones.
void FillWithRandom(const ParamTable& table) {
  uint64_t seed = 0;
  for (const Param& param : table.params()) {
    const at::Tensor values = Random(param.Value().sizes().vec(), seed++);
    if (!param.form) {
      param.Value().copy_(values);
      continue;
    }
    const at::Tensor wide = values.to(at::kFloat).contiguous();
    kernels::QuantizeRows(param.form->type, wide.const_data_ptr<float>(), wide.size(0), wide.size(1),
                          static_cast<std::byte*>(param.Value().mutable_data_ptr()),
                          param.LoadedScales().mutable_data_ptr<float>());
  }
}

// Only tokens that pass through a block are quantized.
TEST(LinearTest, ProductsOfBlocksQuantizeTheirInputIfTheirWeightIsInE4m3) {
  const auto e4m3 = [](const ParamSpec& spec) -> std::optional<QuantForm> {
    if (spec.name.ends_with("to_v.weight")) return std::nullopt;
    return QuantForm{.type = spec.name.starts_with("int8") ? kernels::QuantType::kInt8 : kernels::QuantType::kF8E4M3};
  };
  ParamTable table(at::kFloat, at::kCPU, {}, e4m3);
  table.QuantizeInputs();
  const ParamScope scope(table);
  const Linear outside(scope / "outside", 40, 6);
  table.EnterBlock(0);
  const Linear packed(scope / "attn", 40, {{"to_q", 3}, {"to_k", 5}, {"to_v", 2}}), int8(scope / "int8", 40, 6),
      modulation((scope / "mod").OfConditioning(), 40, 6);
  table.LeaveBlock();
  FillWithRandom(table);
  parallel::SingleRank group;
  parallel::LocalAttention attention;
  const parallel::ForwardContext context{.attention = attention, .tensor = group, .world = group};
  const at::Tensor x = Random({2, 7, 40}, 99).to(at::kFloat);
  const auto find = [&](const std::string& name) {
    return *std::ranges::find_if(table.params(), [&](const Param& param) { return param.spec.name == name; });
  };
  const auto product = [&](const std::string& name, bool in_fp8) {
    const Param weight = find(name + ".weight");
    const at::Tensor bias = find(name + ".bias").Value();
    if (!weight.form) return kernels::LinearProduct(x, weight.Value(), bias);
    const kernels::QuantWeight quantized{
        .type = weight.form->type, .values = weight.Value(), .scales = weight.LoadedScales(), .table = {}, .in = 40};
    if (!in_fp8) return kernels::QuantProduct(x, quantized, bias);
    const auto [codes, scales] = kernels::QuantizeActivations(x);
    return kernels::Fp8Product(codes, scales, quantized, bias, at::kFloat);
  };
  const at::Tensor y = packed.Forward(x, context);
  EXPECT_TRUE(
      at::equal(y, at::cat({product("attn.to_q", true), product("attn.to_k", true), product("attn.to_v", false)}, -1)));
  EXPECT_FALSE(at::equal(product("attn.to_q", true), product("attn.to_q", false)));
  EXPECT_TRUE(at::equal(outside.Forward(x, context), product("outside", false)));
  EXPECT_TRUE(at::equal(int8.Forward(x, context), product("int8", false)));
  EXPECT_TRUE(at::equal(modulation.Forward(x, context), product("mod", false)));
}

// A table with one block, whose products quantize their input, and their weights.
struct Fp8Block {
  Fp8Block() {
    table.QuantizeInputs();
    table.EnterBlock(0);
    const ParamScope scope(table);
    in.emplace(scope / "in", 40, 24);
    out.emplace(scope / "out", 24, 40);
    gate_and_value.emplace(scope, 40, std::vector<LinearPart>{{"w1", 24}, {"w3", 24}});
    plain.emplace(scope / "plain", 40, 24);
    table.LeaveBlock();
    FillWithRandom(table);
  }

  ParamTable table{at::kBFloat16, at::kCPU, {}, [](const ParamSpec& spec) -> std::optional<QuantForm> {
                     if (spec.name.starts_with("plain")) return std::nullopt;
                     return QuantForm{.type = kernels::QuantType::kF8E4M3};
                   }};
  std::optional<Linear> in, out, gate_and_value, plain;
};

// The inputs that operators quantize themselves give the results of the operators and of products that quantize.
TEST(LinearTest, InputsThatOperatorsQuantizeGiveTheSameBits) {
  const Fp8Block block;
  parallel::SingleRank group;
  parallel::LocalAttention attention;
  const parallel::ForwardContext context{.attention = attention, .tensor = group, .world = group};
  uint64_t seed = 50;
  const auto make = [&seed](const std::vector<int64_t>& shape) { return Random(shape, seed++).to(at::kBFloat16); };
  const at::Tensor x = make({2, 7, 40}), y = make({2, 7, 40}), shift = make({2, 40}), scale = make({2, 40}),
                   gate = make({2, 40}), weight = make({40}), bias = make({40});
  constexpr double kEps = 1e-6;
  const auto expect_same = [&](const ProductInput& input, const at::Tensor& numbers) {
    EXPECT_TRUE(input.is_quantized());
    EXPECT_TRUE(at::equal(block.in->Forward(input, context), block.in->Forward(numbers, context)));
  };
  expect_same(LayerNormModulateFor(*block.in, x, shift, scale, kEps, context),
              kernels::LayerNormModulate(x, shift, scale, kEps));
  expect_same(LayerNormShiftFor(*block.in, x, weight, shift, kEps, context),
              kernels::LayerNormShift(x, weight, shift, kEps));
  expect_same(ScaledRmsNormFor(*block.in, x, weight, scale, kEps, context),
              kernels::RmsNorm(x, weight, kEps) * (1 + scale).unsqueeze(1));
  expect_same(ScaledRmsNormFor(*block.in, x, weight, std::nullopt, kEps, context), kernels::RmsNorm(x, weight, kEps));
  const auto [sum, normalised] = GatedResidualNormModulateFor(*block.in, x, gate, y, shift, scale, kEps, context);
  const auto [expected_sum, expected] = kernels::GatedResidualNormModulate(x, gate, y, shift, scale, kEps);
  EXPECT_TRUE(at::equal(sum, expected_sum));
  expect_same(normalised, expected);
  expect_same(std::get<1>(ResidualNormFor(*block.in, x, y, weight, bias, kEps, context)),
              std::get<1>(kernels::ResidualNorm(x, y, weight, bias, kEps)));
  EXPECT_TRUE(at::equal(GeluTanhMlp(*block.in, *block.out, normalised, context),
                        block.out->Forward(kernels::GeluTanh(block.in->Forward(expected, context)), context)));
  const std::vector<at::Tensor> parts = block.gate_and_value->Forward(normalised, context).chunk(2, -1);
  EXPECT_TRUE(at::equal(block.out->Forward(SwiGluFor(*block.out, parts[0], parts[1], context), context),
                        block.out->Forward(kernels::SwiGlu(parts[0], parts[1]), context)));
}

// The factors of an adapter multiply numbers, and a weight that is not in e4m3 takes numbers.
TEST(LinearTest, InputsStayNumbersWhereSomethingElseReadsThem) {
  const Fp8Block block;
  parallel::SingleRank group;
  parallel::LocalAttention attention;
  parallel::ForwardContext context{.attention = attention, .tensor = group, .world = group};
  EXPECT_TRUE(block.in->TakesQuantizedRows(context));
  EXPECT_FALSE(block.plain->TakesQuantizedRows(context));
  const at::Tensor x = Random({2, 7, 40}, 60).to(at::kBFloat16), gate = Random({2, 7, 24}, 61).to(at::kBFloat16);
  EXPECT_THROW(block.plain->Forward(kernels::QuantizedGeluTanh(x), context), c10::Error);
  EXPECT_FALSE(SwiGluFor(*block.plain, gate, gate, context).is_quantized());
  parallel::AdapterFactors adapters;
  adapters.Add("in",
               {.a = Random({2, 40}, 62).to(at::kBFloat16), .b = Random({24, 2}, 63).to(at::kBFloat16), .scale = 1});
  context.adapters = &adapters;
  EXPECT_FALSE(block.in->TakesQuantizedRows(context));
  EXPECT_TRUE(block.out->TakesQuantizedRows(context));
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

// The factors of one part of a packed product change only that part.
TEST(LinearTest, LowRankFactorsApplyToTheirPartAlone) {
  ParamTable table(at::kDouble, at::kCPU);
  const Linear linear(ParamScope(table) / "attn", 4, {{"to_q", 3}, {"to_k", 5}});
  uint64_t seed = 0;
  for (const Param& param : table.params()) param.Value().copy_(Random(param.spec.shape, seed++));
  ASSERT_EQ(table.products().size(), 2);
  EXPECT_EQ(table.products()[1].name, "attn.to_k");
  EXPECT_EQ(table.products()[1].out, 5);

  const at::Tensor a = Random({2, 4}, 20), b = Random({5, 2}, 21), second = Random({5, 2}, 22);
  parallel::AdapterFactors adapters;
  adapters.Add("attn.to_k", {.a = a, .b = b, .scale = 0.5});
  adapters.Add("attn.to_k", {.a = a, .b = second, .scale = -2});
  parallel::SingleRank group;
  parallel::LocalAttention attention;
  const at::Tensor x = Random({2, 7, 4}, 9);
  const at::Tensor plain = linear.Forward(x, {.attention = attention, .tensor = group, .world = group});
  const parallel::ForwardContext context{
      .attention = attention, .tensor = group, .world = group, .adapters = &adapters};
  const at::Tensor added = at::matmul(at::matmul(x, a.t()), (b * 0.5 - second * 2).t());
  const at::Tensor expected = at::cat({plain.narrow(-1, 0, 3), plain.narrow(-1, 3, 5) + added}, -1);
  const at::Tensor with_gradients = linear.Forward(x, context), activated = linear.ForwardGeluTanh(x, context);
  EXPECT_LT((with_gradients - expected).abs().max().item<double>(), 1e-13);
  EXPECT_LT((activated - at::gelu(expected, "tanh")).abs().max().item<double>(), 1e-13);
  const c10::InferenceMode no_gradients;
  EXPECT_LT((linear.Forward(x, context) - expected).abs().max().item<double>(), 1e-13);
}

TEST(LinearTest, AnAdapterOfScaleZeroChangesNoBit) {
  ParamTable table(at::kFloat, at::kCPU);
  const Linear linear(ParamScope(table) / "out", 4, 3);
  uint64_t seed = 0;
  for (const Param& param : table.params()) param.Value().copy_(Random(param.spec.shape, seed++));
  parallel::AdapterFactors adapters;
  adapters.Add("out", {.a = Random({2, 4}, 5).to(at::kFloat), .b = Random({3, 2}, 6).to(at::kFloat), .scale = 0});
  EXPECT_TRUE(adapters.empty());
  parallel::SingleRank group;
  parallel::LocalAttention attention;
  const at::Tensor x = Random({5, 4}, 9).to(at::kFloat);
  EXPECT_TRUE(
      at::equal(linear.Forward(x, {.attention = attention, .tensor = group, .world = group, .adapters = &adapters}),
                linear.Forward(x, {.attention = attention, .tensor = group, .world = group})));
}

}  // namespace
}  // namespace tessera::models
