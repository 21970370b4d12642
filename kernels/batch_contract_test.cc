// Tests that every operator computes an image's part of the result from that image's part of the inputs alone, bit for
// bit: for every dtype, every instruction set of this machine, batches of 1 to 8 and 1, 2, 3 and 8 threads.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>

#include "kernels/cpu/operators.h"
#include "kernels/cpu/quantized_rows.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/random_quant_weight.h"

namespace tessera::kernels {
namespace {

constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16};
constexpr int64_t kLargestBatch = 8;
constexpr int kThreads[] = {1, 2, 3, 8};

// The inputs of one call, batch first, and the call, which binds what all images share.
struct OperatorCase {
  std::string name;
  std::vector<at::Tensor> inputs;
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&, cpu::Isa)> call;
  bool by_isa = true;  // whether the operator has versions by instruction set
};

class BatchContractTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  BatchContractTest() : threads_(at::get_num_threads()) { at::manual_seed(3); }
  ~BatchContractTest() override { at::set_num_threads(threads_); }

  static at::Tensor Random(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble).to(GetParam()); }
  static at::ScalarType Accumulation() { return GetParam() == at::kDouble ? at::kDouble : at::kFloat; }

  static std::vector<at::Tensor> Of(const std::vector<at::Tensor>& batch, int64_t first, int64_t count) {
    std::vector<at::Tensor> part;
    for (const at::Tensor& tensor : batch) part.push_back(tensor.narrow(0, first, count).clone());
    return part;
  }

  // Returns the first violation of the contract that is found, or an empty string.
  static std::string Breach(const OperatorCase& op) {
    for (const cpu::Isa isa : op.by_isa ? IsasOfThisMachine() : std::vector{cpu::BestIsa()}) {
      at::set_num_threads(1);
      std::vector<std::vector<at::Tensor>> alone;
      for (int64_t i = 0; i < kLargestBatch; ++i) alone.push_back(op.call(Of(op.inputs, i, 1), isa));
      for (const int threads : kThreads) {
        at::set_num_threads(threads);
        for (const int64_t size : {int64_t{1}, int64_t{3}, kLargestBatch}) {
          const int64_t first = kLargestBatch - size;
          const std::vector<at::Tensor> together = op.call(Of(op.inputs, first, size), isa);
          for (int64_t i = 0; i < size; ++i) {
            for (size_t t = 0; t < together.size(); ++t) {
              if (at::equal(together[t].narrow(0, i, 1), alone[static_cast<size_t>(first + i)][t])) continue;
              return op.name + " of " + c10::toString(GetParam()) + ", instruction set " +
                     std::to_string(static_cast<int>(isa)) + ": image " + std::to_string(i) + " of " +
                     std::to_string(size) + " on " + std::to_string(threads) + " threads, result " + std::to_string(t);
            }
          }
        }
      }
    }
    return "";
  }

  static void ExpectContract(const OperatorCase& op) { EXPECT_EQ(Breach(op), ""); }

  const int threads_;
};

TEST_P(BatchContractTest, OfProducts) {
  struct Shape {
    int64_t rows, in, out;
  };
  // Images with one row, a few, and more than a block; depths that are cut, one of them into slices, and depths that
  // are not whole vectors.
  for (const Shape& s :
       {Shape{1, 256, 192}, Shape{3, 33, 70}, Shape{17, 1030, 50}, Shape{40, 3690, 70}, Shape{130, 64, 40}}) {
    const at::Tensor weight = Random({s.out, s.in}), bias = Random({s.out});
    for (const bool packed : {false, true}) {
      ExpectContract({.name = packed ? "packed product" : "product",
                      .inputs = {Random({kLargestBatch, s.rows, s.in})},
                      .call = [&](const auto& in, cpu::Isa isa) -> std::vector<at::Tensor> {
                        return {cpu::LinearProduct(in[0], packed ? cpu::PackWeight(weight, isa) : weight, bias, isa)};
                      }});
    }
  }
}

TEST_P(BatchContractTest, OfProductsWithQuantizedWeights) {
  for (const QuantType type : {QuantType::kInt8, QuantType::kNibble, QuantType::kQ4_K}) {
    for (const int64_t rows : {1, 17, 130}) {
      const QuantWeight weight = RandomQuantWeight(type, 70, 768);
      const at::Tensor bias = Random({70});
      ExpectContract({.name = std::string(QuantTypeName(type)) + " product",
                      .inputs = {Random({kLargestBatch, rows, 768})},
                      .call = [&](const auto& in, cpu::Isa isa) -> std::vector<at::Tensor> {
                        return {cpu::QuantProduct(in[0], weight, bias, isa)};
                      }});
    }
  }
}

TEST_P(BatchContractTest, OfProductsInFp8) {
  for (const int64_t rows : {1, 17, 130}) {
    const QuantWeight weight = RandomQuantWeight(QuantType::kF8E4M3, 70, 1030);
    const at::Tensor bias = Random({70});
    ExpectContract({.name = "fp8 product",
                    .inputs = {Random({kLargestBatch, rows, 1030})},
                    .call = [&](const auto& in, cpu::Isa isa) -> std::vector<at::Tensor> {
                      const auto [codes, scales] = cpu::QuantizeActivations(in[0], isa);
                      return {codes, scales, cpu::Fp8Product(codes, scales, weight, bias, GetParam(), isa)};
                    }});
  }
}

TEST_P(BatchContractTest, OfOperatorsThatQuantizeTheirRows) {
  for (const int64_t rows : {1, 17}) {
    for (const int64_t channels : {64, 515}) {
      const std::vector<int64_t> tokens = {kLargestBatch, rows, channels}, vectors = {kLargestBatch, channels};
      const at::Tensor weight = Random({channels});
      ExpectContract(
          {.name = "quantized norms",
           .inputs = {Random(tokens), Random(tokens), Random(vectors), Random(vectors), Random(vectors)},
           .call = [&](const auto& in, cpu::Isa isa) -> std::vector<at::Tensor> {
             const auto [sum, codes, scales] =
                 cpu::QuantizedResidualNorm(in[0], in[2], in[1], std::nullopt, std::nullopt, in[3], in[4], 1e-6, isa);
             const auto layer = cpu::QuantizedLayerNorm(in[0], weight, in[3], std::nullopt, 1e-6, isa);
             const auto rms = cpu::QuantizedRmsNorm(in[0], weight, in[4], 1e-6, isa);
             return {sum, codes, scales, std::get<0>(layer), std::get<1>(layer), std::get<0>(rms), std::get<1>(rms)};
           }});
      ExpectContract({.name = "quantized activations",
                      .inputs = {Random(tokens), Random(tokens)},
                      .call = [&](const auto& in, cpu::Isa isa) -> std::vector<at::Tensor> {
                        const auto gelu = cpu::QuantizedGeluTanh(in[0], isa);
                        const auto swiglu = cpu::QuantizedSwiGlu(in[0], in[1], isa);
                        return {std::get<0>(gelu), std::get<1>(gelu), std::get<0>(swiglu), std::get<1>(swiglu)};
                      }});
    }
  }
}

// Shows that the test can fail: it detects a sum that is split by the size of the batch.
TEST_P(BatchContractTest, IsBrokenByASplitByBatchSize) {
  const at::Tensor weight = Random({40, 64});
  const auto split = [&](const auto& in, cpu::Isa isa) -> std::vector<at::Tensor> {
    if (in[0].size(0) < 4) return {cpu::LinearProduct(in[0], weight, std::nullopt, isa)};
    const auto half = [&](int64_t first) {
      return cpu::LinearProduct(in[0].narrow(-1, first, 32), weight.narrow(1, first, 32), std::nullopt, isa);
    };
    return {half(0) + half(32)};
  };
  EXPECT_NE(Breach({.name = "split product", .inputs = {Random({kLargestBatch, 17, 64})}, .call = split}), "");
}

TEST_P(BatchContractTest, OfAttention) {
  const at::Tensor q = Random({kLargestBatch, 70, 2, 24}), k = Random({kLargestBatch, 150, 2, 24}),
                   v = Random({kLargestBatch, 150, 2, 24});
  at::Tensor bias = at::zeros({kLargestBatch, 150}, Accumulation());
  for (int64_t i = 0; i < kLargestBatch; ++i) bias.narrow(0, i, 1).narrow(1, 17 * i + 1, 149 - 17 * i).fill_(-10000);
  ExpectContract({.name = "attention", .inputs = {q, k, v}, .call = [](const auto& in, cpu::Isa isa) {
                    return std::vector{cpu::Attention(in[0], in[1], in[2], std::nullopt, 0.2, isa)};
                  }});
  ExpectContract({.name = "masked attention", .inputs = {q, k, v, bias}, .call = [](const auto& in, cpu::Isa isa) {
                    return std::vector{cpu::Attention(in[0], in[1], in[2], in[3], 0.2, isa)};
                  }});
  ExpectContract({.name = "attention with log-sum-exp", .inputs = {q, k, v}, .call = [](const auto& in, cpu::Isa isa) {
                    const auto [read, lse] = cpu::AttentionWithLse(in[0], in[1], in[2], 0.2, isa);
                    return std::vector{read, lse};
                  }});
  const at::Tensor lse = at::randn({kLargestBatch, 70, 2}, Accumulation()), other_lse = at::randn_like(lse);
  ExpectContract({.name = "merged attention",
                  .inputs = {q, lse, q + 1, other_lse},
                  .call =
                      [](const auto& in, cpu::Isa) {
                        const auto [read, merged] = cpu::MergeAttention(in[0], in[1], in[2], in[3]);
                        return std::vector{read, merged};
                      },
                  .by_isa = false});
}

// A prompt is padded if the batch has longer prompts; the padding must not change the result.
TEST_P(BatchContractTest, OfAttentionToAPromptPaddedForOthers) {
  const at::Tensor q = Random({1, 70, 2, 24}), k = Random({1, 150, 2, 24}), v = Random({1, 150, 2, 24});
  for (const int64_t tokens : {1, 16, 99, 149}) {
    at::Tensor bias = at::zeros({1, 150}, Accumulation());
    bias.narrow(1, tokens, 150 - tokens).fill_(-10000);
    for (const cpu::Isa isa : IsasOfThisMachine()) {
      const at::Tensor padded = cpu::Attention(q, k, v, bias, 0.2, isa);
      const at::Tensor alone =
          cpu::Attention(q, k.narrow(1, 0, tokens), v.narrow(1, 0, tokens), std::nullopt, 0.2, isa);
      EXPECT_TRUE(at::equal(padded, alone)) << GetParam() << " " << tokens << " " << static_cast<int>(isa);
    }
  }
}

TEST_P(BatchContractTest, OfNormsAndModulation) {
  for (const int64_t channels : {33, 640}) {
    const at::Tensor x = Random({kLargestBatch, 60, channels}), y = Random({kLargestBatch, 60, channels});
    const at::Tensor a = Random({kLargestBatch, channels}), b = Random({kLargestBatch, channels});
    const at::Tensor weight = Random({channels});
    ExpectContract({.name = "layer norm", .inputs = {x, a, b}, .call = [](const auto& in, cpu::Isa isa) {
                      return std::vector{cpu::LayerNormModulate(in[0], in[1], in[2], 1e-6, isa)};
                    }});
    ExpectContract({.name = "shifted layer norm", .inputs = {x, a}, .call = [&](const auto& in, cpu::Isa isa) {
                      return std::vector{cpu::LayerNormShift(in[0], weight, in[1], 1e-6, isa)};
                    }});
    ExpectContract(
        {.name = "affine layer norm",
         .inputs = {x},
         .call = [&](const auto& in,
                     cpu::Isa) { return std::vector{at::layer_norm(in[0], {channels}, weight, weight, 1e-6)}; },
         .by_isa = false});
    ExpectContract({.name = "gated residual", .inputs = {x, a, y}, .call = [](const auto& in, cpu::Isa isa) {
                      return std::vector{cpu::GatedResidual(in[0], in[1], in[2], isa)};
                    }});
    ExpectContract({.name = "gated residual, norm and modulation",
                    .inputs = {x, a, y, b, a},
                    .call = [](const auto& in, cpu::Isa isa) {
                      const auto [sum, normalised] = cpu::GatedResidualNormModulate(
                          in[0], in[1], in[2], std::nullopt, std::nullopt, in[3], in[4], 1e-6, isa);
                      return std::vector{sum, normalised};
                    }});
    ExpectContract({.name = "residual and norm", .inputs = {x, y}, .call = [&](const auto& in, cpu::Isa isa) {
                      const auto [sum, normalised] = cpu::GatedResidualNormModulate(
                          in[0], std::nullopt, in[1], weight, weight, std::nullopt, std::nullopt, 1e-6, isa);
                      return std::vector{sum, normalised};
                    }});
    ExpectContract({.name = "rms norm", .inputs = {x}, .call = [&](const auto& in, cpu::Isa isa) {
                      return std::vector{cpu::RmsNorm(in[0], weight, 1e-6, isa)};
                    }});
    ExpectContract({.name = "softmax",
                    .inputs = {x},
                    .call = [](const auto& in, cpu::Isa) { return std::vector{at::softmax(in[0], -1)}; },
                    .by_isa = false});
  }
}

TEST_P(BatchContractTest, OfQueriesKeysAndValues) {
  for (const int64_t channels : {24, 72}) {
    const at::Tensor weight = Random({channels}), bias = Random({channels});
    const at::Tensor angles = at::randn({60, channels / 2}, Accumulation());
    const RotaryTables rotary{.cos = at::cos(angles), .sin = at::sin(angles)};
    ExpectContract({.name = "queries, keys and values",
                    .inputs = {Random({kLargestBatch, 60, 6 * channels})},
                    .call = [&](const auto& in, cpu::Isa isa) {
                      // Memory order of Ulysses' all-to-all: one part of the heads per rank outermost, the images
                      // inside.
                      const at::Tensor sent = at::empty({2, 60, 3, in[0].size(0), 1, channels}, in[0].options());
                      const auto place = [&](int64_t i) { return sent.select(2, i).permute({2, 1, 0, 3, 4}); };
                      const HeadsOut out{.q = place(0), .k = place(1), .v = place(2)};
                      cpu::QkvNormRope(in[0], {.weight = weight, .bias = {}, .eps = 1e-6},
                                       {.weight = weight, .bias = bias, .eps = 1e-6}, rotary, out, isa);
                      return std::vector{out.q, out.k, out.v};
                    }});
  }
}

TEST_P(BatchContractTest, OfElementwiseFunctions) {
  struct Function {
    const char* name;
    std::function<at::Tensor(const at::Tensor&, cpu::Isa)> of;
    bool by_isa = false;
  };
  const Function functions[] = {
      {"silu", [](const at::Tensor& x, cpu::Isa isa) { return cpu::Silu(x, isa); }, true},
      {"gelu tanh", [](const at::Tensor& x, cpu::Isa isa) { return cpu::GeluTanh(x, isa); }, true},
      {"gelu", [](const at::Tensor& x, cpu::Isa) { return cpu::Gelu(x); }},
      {"sigmoid", [](const at::Tensor& x, cpu::Isa) { return cpu::Sigmoid(x); }},
      {"cosine", [](const at::Tensor& x, cpu::Isa) { return cpu::Cos(x); }},
      {"sine", [](const at::Tensor& x, cpu::Isa) { return cpu::Sin(x); }},
      // Combined as samplers and guidance combine tensors.
      {"scaled sum", [](const at::Tensor& x, cpu::Isa) { return x * 1.7 - x / 0.9; }},
  };
  // The halves of each row of a product.
  for (const int64_t channels : {640, 33}) {
    ExpectContract({.name = "swiglu",
                    .inputs = {Random({kLargestBatch, 60, 2 * channels})},
                    .call = [](const auto& in, cpu::Isa isa) {
                      const std::vector<at::Tensor> halves = in[0].chunk(2, -1);
                      return std::vector{cpu::SwiGlu(halves[0], halves[1], isa)};
                    }});
  }
  // The first width is split over threads at positions that are not whole vectors.
  for (const int64_t channels : {18773, 5}) {
    const at::Tensor x = Random({kLargestBatch, 3, channels});
    for (const Function& function : functions) {
      ExpectContract({.name = function.name,
                      .inputs = {x},
                      .call = [&](const auto& in, cpu::Isa isa) { return std::vector{function.of(in[0], isa)}; },
                      .by_isa = function.by_isa});
    }
  }
}

TEST_P(BatchContractTest, OfTheAutoencoder) {
  const at::Tensor image = Random({kLargestBatch, 12, 21, 119}), weight = Random({20, 12, 3, 3}), bias = Random({20});
  for (const int64_t stride : {1, 2}) {
    ExpectContract({.name = "convolution", .inputs = {image}, .call = [&](const auto& in, cpu::Isa isa) {
                      return std::vector{cpu::Conv2d(in[0], weight, bias, stride, {1, 1, 1, 1}, isa)};
                    }});
  }
  ExpectContract(
      {.name = "convolution of twice the size", .inputs = {image}, .call = [&](const auto& in, cpu::Isa isa) {
         return std::vector{cpu::UpsampledConv2d(in[0], weight, bias, 3, 20, isa)};
       }});
  ExpectContract({.name = "moments", .inputs = {image}, .call = [](const auto& in, cpu::Isa isa) {
                    const auto [mean, squares] = cpu::GroupMoments(in[0], 4, isa);
                    return std::vector{mean, squares};
                  }});
  const at::Tensor factor = at::randn({kLargestBatch, 12}, Accumulation()),
                   offset = at::randn({kLargestBatch, 12}, Accumulation());
  for (const bool silu : {false, true}) {
    ExpectContract(
        {.name = "channel affine", .inputs = {image, factor, offset}, .call = [&](const auto& in, cpu::Isa isa) {
           return std::vector{cpu::ChannelAffine(in[0], in[1], in[2], silu, isa)};
         }});
  }
}

INSTANTIATE_TEST_SUITE_P(Types, BatchContractTest, testing::ValuesIn(kTypes),
                         [](const auto& param) { return c10::toString(param.param); });

}  // namespace
}  // namespace tessera::kernels
