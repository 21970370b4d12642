#include "models/layers/linear.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/macros/planted.h"
#include "kernels/ops.h"
#include "models/layers/quant_weight_of.h"

namespace tessera::models {
namespace {

ParamSpec PartSpec(const ParamScope& scope, const LinearPart& part, std::string_view leaf, std::vector<int64_t> shape,
                   LinearRole role, const LinearOptions& options) {
  const auto name = [&](const std::string& part_name) {
    return part_name.empty() ? scope.Name(leaf) : (scope / part_name).Name(leaf);
  };
  ParamSpec spec{.name = name(part.name), .shape = std::move(shape), .role = role, .partial = scope.partial()};
  for (const std::string& alias : part.aliases) spec.aliases.push_back(name(alias));
  if (options.role != LinearRole::kReplicated && !options.tokens) spec.partial.tensor = OverTensor::kWhole;
  return spec;
}

}  // namespace

Linear::Linear(const ParamScope& scope, int64_t in, int64_t out, const LinearOptions& options)
    : Linear(scope, in, {LinearPart{.name = "", .out = out}}, options) {}

Linear::Linear(const ParamScope& scope, int64_t in, const std::vector<LinearPart>& parts, const LinearOptions& options)
    : role_(options.role), tokens_(options.tokens) {
  std::vector<ParamSpec> weights, biases;
  int64_t begin = 0;
  const TensorShard& shard = scope.table().shard();
  for (const LinearPart& part : parts) {
    const int64_t count = role_ == LinearRole::kColumn ? shard.count(part.out, options.parts) : part.out;
    parts_.push_back(
        {.module = part.name.empty() ? scope.prefix() : scope.Name(part.name), .begin = begin, .count = count});
    begin += count;
    weights.push_back(PartSpec(scope, part, "weight", {part.out, in}, role_, options));
    weights.back().parts = options.parts;
    weights.back().is_identity_if_missing = options.is_identity_if_missing;
    // The bias of a row-sharded product is replicated, because it is added after the sum.
    biases.push_back(PartSpec(scope, part, "bias", {part.out},
                              role_ == LinearRole::kColumn ? role_ : LinearRole::kReplicated, options));
    if (role_ == LinearRole::kColumn) biases.back().parts = options.parts;
  }
  weight_ = scope.table().AddProduct(std::move(weights));
  if (options.bias) bias_ = scope.table().AddPacked(std::move(biases));
}

at::Tensor Linear::Forward(const ProductInput& x, const parallel::ForwardContext& context) const {
  if (x.is_quantized()) {
    TORCH_CHECK(TakesQuantizedRows(context), "a product that needs numbers was given quantized rows");
    return Multiply(x, bias_);
  }
  at::Tensor y = Product(x.numbers(), context);
  return HasFactors(context) ? WithLowRank(std::move(y), x.numbers(), context) : y;
}

bool Linear::TakesQuantizedRows(const parallel::ForwardContext& context) const {
  return context.tensor.size() == 1 && context.tensor_tokens == nullptr && !HasFactors(context) &&
         !weight_->rows.empty() && std::ranges::all_of(weight_->rows, &WeightRows::quantizes_input);
}

std::optional<parallel::TokenRuns> Linear::RunsOf(const parallel::ForwardContext& context) const {
  if (context.tensor_tokens == nullptr || role_ == LinearRole::kReplicated || !tokens_) return std::nullopt;
  return context.tensor_tokens->Runs(*tokens_);
}

at::Tensor Linear::Enter(const at::Tensor& x, const parallel::ForwardContext& context) const {
  const std::optional<parallel::TokenRuns> runs = RunsOf(context);
  return runs ? parallel::GatherTokens(x, *runs, context.tensor) : parallel::CopyToGroup(x, context.tensor);
}

at::Tensor Linear::Leave(const at::Tensor& sum, const parallel::ForwardContext& context) const {
  const std::optional<parallel::TokenRuns> runs = RunsOf(context);
  return runs ? parallel::ScatterTokens(sum, *runs, context.tensor) : parallel::SumOverGroup(sum, context.tensor);
}

at::Tensor Linear::Multiply(const ProductInput& input, const std::optional<at::Tensor>& bias) const {
  const at::Tensor& x = input.numbers();
  if (weight_->rows.empty()) return kernels::LinearProduct(x, On(x.device(), weight_->Values()), bias);
  std::vector<at::Tensor> parts;
  kernels::QuantizedRows quantized = input.quantized();  // once for all parts
  if (!input.is_quantized() && std::ranges::any_of(weight_->rows, &WeightRows::quantizes_input)) {
    std::tie(quantized.codes, quantized.scales) = kernels::QuantizeActivations(x);
    quantized.dtype = x.scalar_type();
  }
  const at::Device device = input.is_quantized() ? quantized.codes.device() : x.device();
  const auto multiply = [&](const WeightRows& rows, const std::optional<at::Tensor>& own_bias) {
    if (!rows.form) return kernels::LinearProduct(x, On(device, rows.Values()), own_bias);
    const kernels::QuantWeight weight = QuantWeightOf(rows, device);
    return rows.quantizes_input
               ? kernels::Fp8Product(quantized.codes, quantized.scales, weight, own_bias, quantized.dtype)
               : kernels::QuantProduct(x, weight, own_bias);
  };
  int64_t begin = 0;
  for (const WeightRows& rows : weight_->rows) {
    const at::Tensor& values = rows.Values();
    const int64_t count = rows.form || values.dim() == 2 ? values.size(0) : values.size(1);
    std::optional<at::Tensor> own_bias;
    if (bias) own_bias = bias->narrow(0, begin, count);
    parts.push_back(multiply(rows, own_bias));
    begin += count;
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts, -1);
}

at::Tensor Linear::Product(const at::Tensor& x, const parallel::ForwardContext& context) const {
  switch (role_) {
    case LinearRole::kReplicated:
      return Multiply(x, bias_);
    case LinearRole::kColumn:
      if (weight_->values.defined() && weight_->values.requires_grad() && at::GradMode::is_enabled() &&
          !base::Planted("gathered_tokens_kept")) {
        if (const std::optional<parallel::TokenRuns> runs = RunsOf(context)) {
          return parallel::GatheredProduct(x, weight_->values, bias_, *runs, context.tensor);
        }
      }
      return Multiply(Enter(x, context), bias_);
    case LinearRole::kRow:
      break;
  }
  if (context.tensor.size() == 1) return Multiply(x, bias_);
  if (base::Planted("row_bias_before_sum") || (base::Planted("low_rank_row_bias_before_sum") && HasFactors(context)))
    return parallel::SumOverGroup(Multiply(x, bias_), context.tensor);
  const at::Tensor sum = Leave(Multiply(x, std::nullopt), context);
  return bias_ ? sum + *bias_ : sum;
}

bool Linear::HasFactors(const parallel::ForwardContext& context) const {
  return context.adapters != nullptr &&
         std::ranges::any_of(parts_, [&](const Part& part) { return context.adapters->Find(part.module) != nullptr; });
}

std::vector<Linear::LowRankPart> Linear::LowRankParts(const parallel::AdapterFactors& adapters) const {
  std::vector<LowRankPart> all;
  int64_t ranks = 0;
  for (const Part& part : parts_) {
    const std::vector<parallel::LowRankFactors>* factors = adapters.Find(part.module);
    if (factors == nullptr) continue;
    for (const parallel::LowRankFactors& each : *factors) {
      const auto known =
          std::ranges::find_if(all, [&](const LowRankPart& one) { return one.factors->a.is_same(each.a); });
      const bool is_new = known == all.end();
      all.push_back({.factors = &each, .part = &part, .first = is_new ? ranks : known->first, .is_new = is_new});
      if (is_new) ranks += each.a.size(0);
    }
  }
  return all;
}

// Returns [..., ranks], equal on the ranks of the group, from one product that reads x and one sum over the group. The
// A of a column role is replicated, and each rank uses the result for its outputs only. Enter sums that small gradient
// over the group, so that the gradients of A and x are complete on every rank. If the ranks share the tokens out, A is
// applied to each token once, before the gather, which then moves few numbers.
at::Tensor Linear::Down(const at::Tensor& x, const std::vector<LowRankPart>& parts,
                        const parallel::ForwardContext& context) const {
  std::vector<at::Tensor> matrices;
  for (const LowRankPart& part : parts) {
    if (part.is_new) matrices.push_back(part.factors->a);
  }
  at::Tensor down = kernels::LinearProduct(x, matrices.size() > 1 ? at::cat(matrices) : matrices.front(), std::nullopt);
  if (role_ == LinearRole::kColumn && !base::Planted("low_rank_gradient_not_summed")) down = Enter(down, context);
  if (role_ == LinearRole::kRow && !base::Planted("low_rank_row_not_summed")) down = Leave(down, context);
  return down;
}

at::Tensor Linear::WithLowRank(at::Tensor y, const at::Tensor& x, const parallel::ForwardContext& context) const {
  const std::vector<LowRankPart> parts = LowRankParts(*context.adapters);
  const at::Tensor down = Down(x, parts, context);
  const at::Tensor flat = y.view({-1, y.size(-1)}), flat_down = down.reshape({-1, down.size(-1)});
  if (at::GradMode::is_enabled()) return at::addmm(flat, flat_down, Up(parts, down).t()).view(y.sizes());
  for (const auto& [factors, part, first, is_new] : parts) {
    at::Tensor own = flat.narrow(1, part->begin, part->count);
    own.addmm_(flat_down.narrow(1, first, factors->a.size(0)), factors->b.t(), 1, factors->scale);
  }
  return y;
}

// Returns [out, ranks] with every B in the rows of its part and the columns of its A, so that all low-rank products are
// one.
at::Tensor Linear::Up(const std::vector<LowRankPart>& parts, const at::Tensor& down) const {
  std::vector<at::Tensor> rows;
  for (const Part& part : parts_) {
    std::vector<at::Tensor> blocks;
    for (const LowRankPart& one : parts) {
      if (!one.is_new) continue;
      at::Tensor block;
      for (const LowRankPart& other : parts) {
        if (other.part != &part || other.first != one.first) continue;
        const at::Tensor scaled = other.factors->b * other.factors->scale;
        block = block.defined() ? block + scaled : scaled;
      }
      blocks.push_back(block.defined() ? block : at::zeros({part.count, one.factors->a.size(0)}, down.options()));
    }
    rows.push_back(blocks.size() > 1 ? at::cat(blocks, 1) : blocks.front());
  }
  return rows.size() > 1 ? at::cat(rows) : rows.front();
}

at::Tensor Linear::ForwardGeluTanh(const ProductInput& x, const parallel::ForwardContext& context) const {
  TORCH_CHECK(role_ != LinearRole::kRow, "the activation of a row-sharded product must follow its sum over ranks");
  if (HasFactors(context) || context.tensor_tokens != nullptr || !weight_->rows.empty()) {
    return kernels::GeluTanh(Forward(x, context));
  }
  const at::Tensor input =
      role_ == LinearRole::kColumn ? parallel::CopyToGroup(x.numbers(), context.tensor) : x.numbers();
  return kernels::LinearGeluTanh(input, On(input.device(), weight_->Values()), bias_);
}

}  // namespace tessera::models
