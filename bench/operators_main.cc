// Compares operators on a device with the host's in fp64 for the same numbers: `bench_operators DEVICE`. Prints a line
// of JSON for each operator and dtype with the largest error, relative to the largest value, and the tolerance. Exits
// with 1 if an error exceeds its tolerance. fp32 must not use TF32, whose products would exceed the tolerance a
// hundredfold.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops.h"
#include "runtime/device/device.h"
#include "tests/support/random_quant_weight.h"
#include "tests/support/random_tensor.h"

namespace tessera {
namespace {

constexpr double kEps = 1e-6;

using Inputs = const std::vector<at::Tensor>&;

struct Operator {
  std::string name;
  std::vector<std::vector<int64_t>> inputs;  // shapes
  std::function<at::Tensor(Inputs)> call;
  std::function<at::Tensor(Inputs)> call_on_host = nullptr;  // null: `call`
};

// Tables, factors and statistics are in max(fp32, dtype).
at::Tensor Wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }

at::Tensor AttentionOf(Inputs x) {
  return kernels::Attention(x[0], x[1], x[2], std::nullopt, 1 / std::sqrt(static_cast<double>(x[0].size(3))));
}

// Attention at a published model's shape. The host computes only 64 of the queries, spread over all of them.
Operator FullSizeAttention(const std::string& name, int64_t rows, int64_t queries, int64_t keys, int64_t heads,
                           int64_t head_dim) {
  const auto sample = [queries](const at::Tensor& x) {
    const at::Tensor indices = at::arange(0, queries, std::max<int64_t>(1, queries / 64));
    return x.index_select(1, indices.to(x.device()));
  };
  return {.name = name,
          .inputs = {{rows, queries, heads, head_dim}, {rows, keys, heads, head_dim}, {rows, keys, heads, head_dim}},
          .call = [sample](Inputs x) { return sample(AttentionOf(x)); },
          .call_on_host =
              [sample](Inputs x) {
                return AttentionOf({sample(x[0]), x[1], x[2]});
              }};
}

// The projection of a block of FLUX.1, with normalised and rotated queries and keys.
at::Tensor HeadsOfFlux(Inputs x) {
  const at::Tensor& packed = x[0];
  const int64_t tokens = packed.size(1), head_dim = x[1].size(0), heads = packed.size(2) / (3 * head_dim);
  const kernels::RotaryTables rotary{.cos = Wide(x[3]).contiguous(), .sin = Wide(x[4]).contiguous()};
  const at::Tensor out = at::zeros({3, packed.size(0), tokens, 1, heads, head_dim}, packed.options());
  kernels::QkvNormRope(packed, {.weight = x[1], .bias = {}, .eps = kEps}, {.weight = x[2], .bias = {}, .eps = kEps},
                       rotary, {.q = out[0], .k = out[1], .v = out[2]});
  return out;
}

at::Tensor MomentsOf(const at::Tensor& x) {
  const auto [mean, squares] = kernels::GroupMoments(x, 32);
  return at::cat({mean, (squares / static_cast<double>(x.numel() / x.size(0) / 32)).sqrt()});
}

// The autoencoder's images have their channels first on a host, and last on a GPU.
void AddImageOperators(std::vector<Operator>& operators) {
  for (const auto& [suffix, format] :
       {std::pair("", at::MemoryFormat::Contiguous), {"_channels_last", at::MemoryFormat::ChannelsLast}}) {
    operators.push_back({.name = std::string("channel_affine") + suffix,
                         .inputs = {{1, 128, 255, 257}, {1, 128}, {1, 128}},
                         .call = [format](Inputs x) {
                           return kernels::ChannelAffine(x[0].contiguous(format), Wide(x[1]), Wide(x[2]), true);
                         }});
    operators.push_back({.name = std::string("group_moments") + suffix,
                         .inputs = {{1, 512, 129, 127}},
                         .call = [format](Inputs x) { return MomentsOf(x[0].contiguous(format)); }});
  }
}

// Widths, heads and tokens of the published models, including sizes without convenient divisors.
std::vector<Operator> Operators() {
  std::vector<Operator> operators = {
      {"layer_norm_modulate",
       {{2, 333, 3072}, {2, 3072}, {2, 3072}},
       [](Inputs x) { return kernels::LayerNormModulate(x[0], x[1], x[2], kEps); }},
      {"gated_residual",
       {{2, 333, 1152}, {2, 1152}, {2, 333, 1152}},
       [](Inputs x) { return kernels::GatedResidual(x[0], x[1], x[2]); }},
      {"gated_residual_norm_modulate",
       {{2, 333, 3072}, {2, 3072}, {2, 333, 3072}, {2, 3072}, {2, 3072}},
       [](Inputs x) { return std::get<1>(kernels::GatedResidualNormModulate(x[0], x[1], x[2], x[3], x[4], kEps)); }},
      {"residual_norm",
       {{2, 77, 1408}, {2, 77, 1408}, {1408}, {1408}},
       [](Inputs x) { return std::get<1>(kernels::ResidualNorm(x[0], x[1], x[2], x[3], kEps)); }},
      {"rms_norm", {{3, 77, 4096}, {4096}}, [](Inputs x) { return kernels::RmsNorm(x[0], x[1], kEps); }},
      {"gelu_tanh", {{7, 5000}}, [](Inputs x) { return kernels::GeluTanh(x[0]); }},
      {"silu", {{7, 5000}}, [](Inputs x) { return kernels::Silu(x[0]); }},
      {"linear",
       {{2, 333, 1152}, {4608, 1152}, {4608}},
       [](Inputs x) { return kernels::LinearProduct(x[0], x[1], x[2]); }},
      {"linear_gelu_tanh",
       {{2, 333, 1152}, {4608, 1152}, {4608}},
       [](Inputs x) { return kernels::LinearGeluTanh(x[0], x[1], x[2]); }},
      {"conv2d",
       {{1, 128, 63, 65}, {128, 128, 3, 3}, {128}},
       [](Inputs x) {
         return kernels::Conv2d(x[0], x[1], x[2], 1, {1, 1, 1, 1});
       }},
      {"merged_attention",
       {{2, 200, 8, 64}, {2, 150, 8, 64}, {2, 150, 8, 64}, {2, 170, 8, 64}, {2, 170, 8, 64}},
       [](Inputs x) {
         const auto [read, lse] = kernels::AttentionWithLse(x[0], x[1], x[2], 0.125);
         const auto [other, other_lse] = kernels::AttentionWithLse(x[0], x[3], x[4], 0.125);
         return std::get<0>(kernels::MergeAttention(read, lse, other, other_lse));
       }},
  };
  operators.push_back({"layer_norm_shift", {{2, 333, 1408}, {1408}, {2, 1408}}, [](Inputs x) {
                         return kernels::LayerNormShift(x[0], x[1], x[2], kEps);
                       }});
  operators.push_back({"geglu_tanh", {{2, 77, 2 * 5120}}, [](Inputs x) {
                         const std::vector<at::Tensor> halves = x[0].chunk(2, -1);
                         return kernels::GegluTanh(halves[0], halves[1]);
                       }});
  operators.push_back({"swiglu", {{2, 77, 2 * 5120}}, [](Inputs x) {
                         const std::vector<at::Tensor> halves = x[0].chunk(2, -1);
                         return kernels::SwiGlu(halves[0], halves[1]);
                       }});
  operators.push_back({"gelu", {{7, 5000}}, [](Inputs x) { return kernels::Gelu(x[0]); }});
  operators.push_back({"sigmoid", {{7, 5000}}, [](Inputs x) { return kernels::Sigmoid(x[0]); }});
  operators.push_back({"weighted_sums", {{16, 128, 128}, {16, 128, 128}}, [](Inputs x) {
                         return kernels::WeightedSums({Wide(x[0]), Wide(x[1])}, {0.75, -1.5}, std::nullopt).front();
                       }});
  operators.push_back({"qkv_norm_rope", {{1, 4608, 3 * 24 * 128}, {128}, {128}, {4608, 64}, {4608, 64}}, HeadsOfFlux});
  AddImageOperators(operators);
  for (const int64_t head_dim : {64, 72, 88, 128}) {
    operators.push_back({absl::StrCat("attention_", head_dim),
                         {{2, 333, 4, head_dim}, {2, 411, 4, head_dim}, {2, 411, 4, head_dim}},
                         AttentionOf});
  }
  operators.push_back(FullSizeAttention("attention_flux_dev", 1, 4608, 4608, 24, 128));
  operators.push_back(FullSizeAttention("attention_sd3_medium", 2, 4096 + 333, 4096 + 333, 24, 64));
  operators.push_back(FullSizeAttention("attention_pixart_sigma", 2, 4096, 4096, 16, 72));
  operators.push_back(FullSizeAttention("attention_pixart_sigma_text", 2, 4096, 300, 16, 72));
  operators.push_back(FullSizeAttention("attention_hunyuandit", 2, 4096, 4096, 16, 88));
  operators.push_back(FullSizeAttention("attention_hunyuandit_text", 2, 4096, 333, 16, 88));
  return operators;
}

kernels::QuantWeight OnDevice(kernels::QuantWeight weight, at::Device device) {
  for (at::Tensor* tensor : {&weight.values, &weight.scales, &weight.table}) {
    if (tensor->defined()) *tensor = tensor->to(device);
  }
  return weight;
}

// Products with a quantized weight of every form.
void AddQuantProducts(std::vector<Operator>& operators) {
  for (const kernels::QuantType type : kernels::kQuantTypes) {
    const kernels::QuantWeight weight = RandomQuantWeight(type, 1000, 1536);
    operators.push_back(
        {absl::StrCat("quant_product_", std::string(kernels::QuantTypeName(type))),
         {{2, 333, 1536}},
         [weight](Inputs x) { return kernels::QuantProduct(x[0], OnDevice(weight, x[0].device()), std::nullopt); }});
  }
}

// Returns the operator's error if all inputs have this dtype.
double ErrorOf(const Operator& op, at::ScalarType dtype, at::Device device) {
  std::vector<at::Tensor> on_device, on_host;
  uint64_t seed = 1;
  for (const std::vector<int64_t>& shape : op.inputs) {
    at::Tensor values = Random(shape, seed++);
    // Scales the weights of products, so that results are about 1.
    if (shape.size() != 3 && shape.size() > 1 && seed == 3) {
      values = values / std::sqrt(static_cast<double>(values.numel()) / static_cast<double>(shape[0]));
    }
    on_host.push_back(values.to(dtype).to(at::kDouble));
    on_device.push_back(values.to(dtype).to(device));
  }
  const at::Tensor expected = op.call_on_host ? op.call_on_host(on_host) : op.call(on_host);
  const at::Tensor actual = op.call(on_device).cpu().to(at::kDouble);
  return ((actual - expected).abs().max() / expected.abs().max()).item<double>();
}

int Main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: bench_operators DEVICE\n");
    return 2;
  }
  const absl::StatusOr<at::Device> device = runtime::OpenDevice(argv[1]);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", std::string(device.status().message()).c_str());
    return 2;
  }
  const c10::InferenceMode no_gradients;
  bool all_within = true;
  std::vector<Operator> operators = Operators();
  AddQuantProducts(operators);
  for (const Operator& op : operators) {
    // One rounding to bf16 is 2⁻⁹ of a value; results of several operators are rounded that many times.
    for (const auto& [name, dtype, tolerance] :
         {std::tuple("bf16", at::kBFloat16, 1.0 / 128), {"fp32", at::kFloat, 1e-5}}) {
      const double error = ErrorOf(op, dtype, *device);
      all_within = all_within && error <= tolerance;
      std::printf(R"({"operator":"%s","dtype":"%s","error":%.3g,"tolerance":%.3g})"
                  "\n",
                  op.name.c_str(), name, error, tolerance);
    }
  }
  return all_within ? 0 : 1;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
