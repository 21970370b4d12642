#include "kernels/gradients.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/macros/planted.h"
#include "kernels/cpu/operators.h"
#include "kernels/ops.h"
#include "kernels/reference/operators.h"

namespace tessera::kernels::gradients {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

bool IsOfHost(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16) && x.numel() > 0;
}

bool IsOfHostInDoubles(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kDouble && x.numel() > 0; }

bool IsLike(const at::Tensor& other, const at::Tensor& x) {
  return other.sizes().equals(x.sizes()) && other.scalar_type() == x.scalar_type();
}

// Returns whether `vector` holds one vector for each image of x [b, n, c].
bool IsModulation(const at::Tensor& vector, const at::Tensor& x) {
  return vector.dim() == 2 && vector.scalar_type() == x.scalar_type() && vector.size(0) == x.size(0) &&
         vector.size(1) == x.size(2);
}

// Returns whether `vector` is one vector for all images.
bool IsChannels(const at::Tensor& vector, const at::Tensor& x) {
  return vector.dim() == 1 && vector.scalar_type() == x.scalar_type() && vector.size(0) == x.size(2);
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static Variable forward(AutogradContext* context, const Variable& q, const Variable& k, const Variable& v,
                          const std::optional<at::Tensor>& key_bias, double scale) {
    const auto [read, lse] = cpu::BiasedAttentionWithLse(q, k, v, key_bias, scale, cpu::BestIsa());
    context->save_for_backward({q, k, v, key_bias.value_or(Variable()), read, lse});
    context->saved_data["scale"] = scale;
    return read;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    auto [of_q, of_k, of_v] = cpu::AttentionBackward(
        gradients[0], saved[0], saved[1], saved[2], saved[3].defined() ? std::optional(saved[3]) : std::nullopt,
        saved[4], saved[5], context->saved_data["scale"].toDouble(), cpu::BestIsa());
    return {of_q, of_k, of_v, Variable(), Variable()};
  }
};

// Like AttentionFunction, with the gradient of the reference.
struct DoubleAttentionFunction : torch::autograd::Function<DoubleAttentionFunction> {
  static Variable forward(AutogradContext* context, const Variable& q, const Variable& k, const Variable& v,
                          const std::optional<at::Tensor>& key_bias, double scale) {
    context->save_for_backward({q, k, v, key_bias.value_or(Variable())});
    context->saved_data["scale"] = scale;
    return kernels::Attention(q, k, v, key_bias, scale);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::AutoGradMode with_gradients(true);
    variable_list inputs;
    for (size_t i = 0; i < 3; ++i) inputs.push_back(saved[i].detach().requires_grad_());
    const at::Tensor read = reference::Attention(inputs[0], inputs[1], inputs[2],
                                                 saved[3].defined() ? std::optional(saved[3]) : std::nullopt,
                                                 context->saved_data["scale"].toDouble());
    variable_list of_inputs = torch::autograd::grad({read}, inputs, {gradients[0]});
    return {of_inputs[0], of_inputs[1], of_inputs[2], Variable(), Variable()};
  }
};

struct DoubleProductFunction : torch::autograd::Function<DoubleProductFunction> {
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& weight,
                          const std::optional<at::Tensor>& bias) {
    // Each is kept for the gradient of the other.
    context->save_for_backward({weight.requires_grad() ? x : Variable(), x.requires_grad() ? weight : Variable()});
    context->saved_data["bias"] = bias.has_value() && bias->requires_grad();
    return kernels::LinearProduct(x, weight, bias);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const at::Tensor rows = gradients[0].reshape({-1, gradients[0].size(-1)});
    at::Tensor of_x, of_weight, of_bias;
    if (weight.defined()) of_x = at::matmul(gradients[0], weight);
    if (x.defined()) of_weight = at::mm(rows.t(), x.reshape({-1, x.size(-1)}));
    if (context->saved_data["bias"].toBool()) of_bias = rows.sum(0);
    return {of_x, of_weight, of_bias};
  }
};

struct NormFunction : torch::autograd::Function<NormFunction> {
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& shift, const Variable& scale,
                          double eps) {
    context->save_for_backward({x, scale});
    context->saved_data["eps"] = eps;
    return kernels::LayerNormModulate(x, shift, scale, eps);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    auto [of_x, of_shift, of_scale] =
        cpu::NormModulateBackward(gradients[0], at::Tensor(), saved[0], saved[1], /*offset=*/1,
                                  context->saved_data["eps"].toDouble(), cpu::BestIsa());
    return {of_x, of_shift, of_scale, Variable()};
  }
};

struct GateFunction : torch::autograd::Function<GateFunction> {
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& gate, const Variable& y) {
    context->save_for_backward({gate, y});
    return kernels::GatedResidual(x, gate, y);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    auto [of_gate, of_y] = cpu::GatedResidualBackward(gradients[0], saved[0], saved[1], cpu::BestIsa());
    return {gradients[0], of_gate, of_y};
  }
};

// `factor` and `shift` are the scale and shift of each image, or the weight and bias of all images.
struct GateNormFunction : torch::autograd::Function<GateNormFunction> {
  static variable_list forward(AutogradContext* context, const Variable& x, const std::optional<at::Tensor>& gate,
                               const Variable& y, const Variable& factor, const Variable& shift, double eps) {
    const auto [sum, normalized] = factor.dim() == 1
                                       ? kernels::ResidualNorm(x, y, factor, shift, eps)
                                       : kernels::GatedResidualNormModulate(x, gate, y, shift, factor, eps);
    context->set_materialize_grads(false);
    context->save_for_backward({sum, factor, gate.value_or(Variable()), gate.has_value() ? y : Variable()});
    context->saved_data["eps"] = eps;
    return {sum, normalized};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &sum = saved[0], &factor = saved[1], &gate = saved[2], &y = saved[3];
    at::Tensor of_sum = gradients[0], of_factor, of_shift, of_gate;
    if (gradients[1].defined()) {
      if (base::Planted("residual_gradient_dropped")) of_sum = at::Tensor();
      std::tie(of_sum, of_shift, of_factor) =
          cpu::NormModulateBackward(gradients[1], of_sum, sum, factor, /*offset=*/factor.dim() == 1 ? 0 : 1,
                                    context->saved_data["eps"].toDouble(), cpu::BestIsa());
    }
    at::Tensor of_y = of_sum;
    if (gate.defined() && of_sum.defined()) {
      std::tie(of_gate, of_y) = cpu::GatedResidualBackward(of_sum, gate, y, cpu::BestIsa());
    }
    return {of_sum, of_gate, of_y, of_factor, of_shift, Variable()};
  }
};

// Keeps the quantized weight alone, and widens it again for the gradient.
struct QuantProductFunction : torch::autograd::Function<QuantProductFunction> {
  static Variable forward(AutogradContext* context, const Variable& x, const QuantWeight& weight,
                          const std::optional<at::Tensor>& bias) {
    context->save_for_backward({weight.values, weight.scales, weight.table});
    context->saved_data["type"] = static_cast<int64_t>(weight.type);
    context->saved_data["in"] = weight.in;
    context->saved_data["scale_block"] = weight.scale_block;
    return kernels::QuantProduct(x, weight, bias);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const QuantWeight weight{.type = static_cast<QuantType>(context->saved_data["type"].toInt()),
                             .values = saved[0],
                             .scales = saved[1],
                             .table = saved[2],
                             .in = context->saved_data["in"].toInt(),
                             .scale_block = context->saved_data["scale_block"].toInt()};
    return {at::matmul(gradients[0], kernels::WidenWeight(weight, gradients[0].scalar_type())), {}, {}};
  }
};

struct GeluTanhFunction : torch::autograd::Function<GeluTanhFunction> {
  static Variable forward(AutogradContext* context, const Variable& x) {
    context->save_for_backward({x});
    return kernels::GeluTanh(x);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {cpu::GeluTanhBackward(gradients[0], context->get_saved_variables()[0], cpu::BestIsa())};
  }
};

}  // namespace

at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::optional<at::Tensor>& key_bias, double scale) {
  if (IsOfHostInDoubles(q) && !(key_bias.has_value() && key_bias->requires_grad())) {
    return DoubleAttentionFunction::apply(q, k, v, key_bias, scale);
  }
  const auto fits = [&](const at::Tensor& x) {
    return IsOfHost(x) && x.dim() == 4 && x.scalar_type() == q.scalar_type();
  };
  if (!fits(q) || !fits(k) || !fits(v) || (key_bias.has_value() && key_bias->requires_grad())) {
    return reference::Attention(q, k, v, key_bias, scale);
  }
  return AttentionFunction::apply(q, k, v, key_bias, scale);
}

at::Tensor LayerNormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps) {
  if (!IsOfHost(x) || x.dim() != 3 || !IsModulation(shift, x) || !IsModulation(scale, x)) {
    return reference::LayerNormModulate(x, shift, scale, eps);
  }
  return NormFunction::apply(x, shift, scale, eps);
}

at::Tensor GatedResidual(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y) {
  if (!IsOfHost(x) || x.dim() != 3 || !IsModulation(gate, x) || !IsLike(y, x)) {
    return reference::GatedResidual(x, gate, y);
  }
  return GateFunction::apply(x, gate, y);
}

std::tuple<at::Tensor, at::Tensor> GatedResidualNormModulate(const at::Tensor& x, const std::optional<at::Tensor>& gate,
                                                             const at::Tensor& y,
                                                             const std::optional<at::Tensor>& weight,
                                                             const std::optional<at::Tensor>& bias,
                                                             const std::optional<at::Tensor>& shift,
                                                             const std::optional<at::Tensor>& scale, double eps) {
  const bool by_image = scale.has_value();
  if (!IsOfHost(x) || x.dim() != 3 || !IsLike(y, x) || (gate.has_value() && !(by_image && IsModulation(*gate, x))) ||
      !(by_image ? IsModulation(*shift, x) && IsModulation(*scale, x)
                 : IsChannels(*weight, x) && IsChannels(*bias, x))) {
    return reference::GatedResidualNormModulate(x, gate, y, weight, bias, shift, scale, eps);
  }
  const variable_list results =
      GateNormFunction::apply(x, gate, y, by_image ? *scale : *weight, by_image ? *shift : *bias, eps);
  return {results[0], results[1]};
}

at::Tensor GeluTanh(const at::Tensor& x) { return IsOfHost(x) ? GeluTanhFunction::apply(x) : reference::GeluTanh(x); }

at::Tensor LinearProduct(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  if (IsOfHostInDoubles(x) && weight.dim() == 2) return DoubleProductFunction::apply(x, weight, bias);
  return reference::LinearProduct(x, cpu::UnpackWeight(weight, cpu::BestIsa()), bias);
}

at::Tensor LinearGeluTanh(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  return kernels::GeluTanh(kernels::LinearProduct(x, weight, bias));
}

at::Tensor QuantProduct(const at::Tensor& x, const QuantWeight& weight, const std::optional<at::Tensor>& bias) {
  return QuantProductFunction::apply(x, weight, bias);
}

}  // namespace tessera::kernels::gradients
