// Operators on a device against the host's in fp64, from the same numbers: `bench_operators DEVICE`. A line of JSON for
// each operator and dtype: the largest error, as a part of the largest value, and what is allowed. Status 1 where one
// is beyond that. fp32 means fp32: products in TF32 would be a hundred times beyond it.
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "runtime/device/device.h"
#include "tests/support/random_tensor.h"

namespace tessera {
namespace {

constexpr double kEps = 1e-6;

struct Operator {
  const char* name;
  std::vector<std::vector<int64_t>> inputs;  // shapes
  std::function<at::Tensor(const std::vector<at::Tensor>&)> call;
};

// Widths, heads and tokens of the published models, some of which nothing divides.
std::vector<Operator> Operators() {
  using Inputs = const std::vector<at::Tensor>&;
  const auto attention = [](Inputs x) {
    return kernels::Attention(x[0], x[1], x[2], std::nullopt, 1 / std::sqrt(static_cast<double>(x[0].size(3))));
  };
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
  static constexpr std::pair<const char*, int64_t> kHeads[] = {
      {"attention_64", 64}, {"attention_72", 72}, {"attention_88", 88}, {"attention_128", 128}};
  for (const auto& [name, head_dim] : kHeads) {
    operators.push_back({name, {{2, 333, 4, head_dim}, {2, 411, 4, head_dim}, {2, 411, 4, head_dim}}, attention});
  }
  return operators;
}

// The error in this dtype, of which all inputs are.
double ErrorOf(const Operator& op, at::ScalarType dtype, at::Device device) {
  std::vector<at::Tensor> on_device, on_host;
  uint64_t seed = 1;
  for (const std::vector<int64_t>& shape : op.inputs) {
    at::Tensor values = Random(shape, seed++);
    // Weights of products, so that results are about 1.
    if (shape.size() != 3 && shape.size() > 1 && seed == 3) {
      values = values / std::sqrt(static_cast<double>(values.numel()) / static_cast<double>(shape[0]));
    }
    on_host.push_back(values.to(dtype).to(at::kDouble));
    on_device.push_back(values.to(dtype).to(device));
  }
  const at::Tensor expected = op.call(on_host), actual = op.call(on_device).cpu().to(at::kDouble);
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
  for (const Operator& op : Operators()) {
    // Roundings of bf16 are 2⁻⁹ of a value; results of several operators are rounded as often.
    for (const auto& [name, dtype, tolerance] :
         {std::tuple("bf16", at::kBFloat16, 1.0 / 128), {"fp32", at::kFloat, 1e-5}}) {
      const double error = ErrorOf(op, dtype, *device);
      all_within = all_within && error <= tolerance;
      std::printf(R"({"operator":"%s","dtype":"%s","error":%.3g,"tolerance":%.3g})"
                  "\n",
                  op.name, name, error, tolerance);
    }
  }
  return all_within ? 0 : 1;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
