#include "models/layers/eight_bit_product.h"

#include <torch/csrc/autograd/custom_function.h>

#include "kernels/ops.h"
#include "models/loading/eight_bits.h"

namespace tessera::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct EightBitProductFunction : torch::autograd::Function<EightBitProductFunction> {
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& values, const Variable& scales,
                          const std::optional<at::Tensor>& bias) {
    context->save_for_backward({values, scales});
    return kernels::LinearProduct(x, FromEightBits(values, scales, x.scalar_type()), bias);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor weight = FromEightBits(saved[0], saved[1], gradients[0].scalar_type());
    return {at::matmul(gradients[0], weight), {}, {}, {}};
  }
};

}  // namespace

at::Tensor EightBitProduct(const at::Tensor& x, const at::Tensor& values, const at::Tensor& scales,
                           const std::optional<at::Tensor>& bias) {
  if (!at::GradMode::is_enabled() || !x.requires_grad()) {
    return kernels::LinearProduct(x, FromEightBits(values, scales, x.scalar_type()), bias);
  }
  return EightBitProductFunction::apply(x, values, scales, bias);
}

}  // namespace tessera::models
