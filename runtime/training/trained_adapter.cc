#include "runtime/training/trained_adapter.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/macros/status_macros.h"
#include "control/training/target_modules.h"
#include "models/adapters/adapter.h"
#include "runtime/denoising/noise.h"
#include "runtime/training/sample_noise.h"

namespace tessera::runtime {
namespace {

using models::LinearRole;
using models::Param;

// Returns the name of the module with this weight [out, in]; "" for parameters that are not of a matrix product.
std::string ModuleOf(const Param& param) {
  absl::string_view name = param.spec.name;
  return param.spec.shape.size() == 2 && !param.spec.buffer && absl::ConsumeSuffix(&name, ".weight") ? std::string(name)
                                                                                                     : "";
}

// Returns [rank, in] for the module with that number among the trained ones, in fp64.
at::Tensor DrawDown(const AdapterOptions& options, int64_t module, int64_t in) {
  const NoiseKey key = StreamOf({.seed = options.seed, .sample = module}, NoisePurpose::kAdapterFactors);
  if (options.init == control::NetworkInit::kGaussian) {
    return NormalOf(key, {options.rank, in}, at::kDouble) / static_cast<double>(options.rank);
  }
  const at::Tensor a = at::empty({options.rank, in}, at::kDouble);
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  for (int64_t i = 0; i < a.numel(); ++i) {
    a.mutable_data_ptr<double>()[i] = bound * (2 * UniformOf(key, static_cast<uint64_t>(i)) - 1);
  }
  return a;
}

std::vector<std::string> ModulesOf(std::span<const Param> model, const AdapterOptions& options) {
  std::vector<std::string> modules = options.modules;
  if (!modules.empty()) return modules;
  for (const Param& param : model) {
    if (std::string module = ModuleOf(param); !module.empty()) modules.push_back(std::move(module));
  }
  return modules;
}

}  // namespace

absl::StatusOr<TrainedAdapter> MakeTrainedAdapter(std::span<const Param> model, const models::TensorShard& shard,
                                                  const AdapterOptions& options) {
  const std::vector<std::string> modules = ModulesOf(model, options);
  RETURN_IF_ERROR(control::CheckTargets(options.targets, modules));
  std::map<std::string, int64_t> numbers;  // of the trained modules, on all stages
  for (const std::string& module : modules) {
    if (control::IsTargetOfAny(module, options.targets)) numbers.emplace(module, static_cast<int64_t>(numbers.size()));
  }
  TrainedAdapter adapter;
  for (const Param& param : model) {
    at::Tensor(param.storage).requires_grad_(false);
    const std::string module = ModuleOf(param);
    const auto number = numbers.find(module);
    if (number == numbers.end()) continue;
    const models::ParamSpec& spec = param.spec;
    const int64_t out = spec.shape[0], in = spec.shape[1];
    const at::TensorOptions like = param.storage.options().dtype(options.dtype).requires_grad(false);
    const parallel::LowRankFactors own =
        models::ShardOf({.a = DrawDown(options, number->second, in), .b = at::zeros({out, options.rank}, like)},
                        {.name = module, .out = out, .in = in, .role = spec.role, .parts = spec.parts}, shard);
    at::Tensor a = own.a.to(like).contiguous(), b = own.b.clone();
    // A replicated factor sees the same tokens as the product: either all of them on every tensor rank, which sums x Aᵀ
    // or its gradient, or those that the rank holds.
    const auto add = [&](const char* leaf, at::Tensor& factor, std::vector<int64_t> shape, LinearRole split) {
      factor.requires_grad_(true);
      const bool is_split = spec.role == split;
      adapter.params.push_back({.spec = {.name = absl::StrCat(module, leaf),
                                         .shape = std::move(shape),
                                         .role = is_split ? split : LinearRole::kReplicated,
                                         .parts = is_split ? spec.parts : std::vector<int64_t>(),
                                         .partial = spec.partial},
                                .storage = factor,
                                .shape = factor.sizes().vec(),
                                .block = param.block});
    };
    add(".lora_A.weight", a, {options.rank, in}, LinearRole::kRow);
    add(".lora_B.weight", b, {out, options.rank}, LinearRole::kColumn);
    adapter.factors.Add(module, {.a = a, .b = b, .scale = options.alpha / static_cast<double>(options.rank)});
  }
  return adapter;
}

}  // namespace tessera::runtime
