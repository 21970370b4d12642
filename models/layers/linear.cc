#include "models/layers/linear.h"

#include "base/planted.h"
#include "kernels/ops.h"
#include "parallel/functional.h"

namespace tessera::models {
namespace {

ParamSpec PartSpec(const ParamScope& scope, const LinearPart& part, std::string_view leaf, std::vector<int64_t> shape,
                   LinearRole role) {
  const auto name = [&](const std::string& part_name) {
    return part_name.empty() ? scope.Name(leaf) : (scope / part_name).Name(leaf);
  };
  ParamSpec spec{.name = name(part.name), .shape = std::move(shape), .role = role, .partial = scope.partial()};
  for (const std::string& alias : part.aliases) spec.aliases.push_back(name(alias));
  return spec;
}

}  // namespace

Linear::Linear(const ParamScope& scope, int64_t in, int64_t out, const LinearOptions& options)
    : Linear(scope, in, {LinearPart{.name = "", .out = out}}, options) {}

Linear::Linear(const ParamScope& scope, int64_t in, const std::vector<LinearPart>& parts, const LinearOptions& options)
    : role_(options.role) {
  std::vector<ParamSpec> weights, biases;
  for (const LinearPart& part : parts) {
    weights.push_back(PartSpec(scope, part, "weight", {part.out, in}, role_));
    weights.back().in_parts = options.in_parts;
    // A row-sharded product's bias is replicated: it is added after the sum.
    biases.push_back(
        PartSpec(scope, part, "bias", {part.out}, role_ == LinearRole::kColumn ? role_ : LinearRole::kReplicated));
  }
  weight_ = scope.table().AddProduct(std::move(weights));
  if (options.bias) bias_ = scope.table().AddPacked(std::move(biases));
}

at::Tensor Linear::Forward(const at::Tensor& x, const parallel::ForwardContext& context) const {
  switch (role_) {
    case LinearRole::kReplicated:
      return kernels::LinearProduct(x, *weight_, bias_);
    case LinearRole::kColumn:
      return kernels::LinearProduct(parallel::CopyToGroup(x, context.tensor), *weight_, bias_);
    case LinearRole::kRow:
      break;
  }
  if (context.tensor.size() == 1) return kernels::LinearProduct(x, *weight_, bias_);
  if (base::Planted("row_bias_before_sum"))
    return parallel::SumOverGroup(kernels::LinearProduct(x, *weight_, bias_), context.tensor);
  const at::Tensor sum = parallel::SumOverGroup(kernels::LinearProduct(x, *weight_, std::nullopt), context.tensor);
  return bias_ ? sum + *bias_ : sum;
}

at::Tensor Linear::ForwardGeluTanh(const at::Tensor& x, const parallel::ForwardContext& context) const {
  TORCH_CHECK(role_ != LinearRole::kRow, "the activation of a row-sharded product comes after its sum");
  const at::Tensor input = role_ == LinearRole::kColumn ? parallel::CopyToGroup(x, context.tensor) : x;
  return kernels::LinearGeluTanh(input, *weight_, bias_);
}

}  // namespace tessera::models
