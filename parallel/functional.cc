#include "parallel/functional.h"

#include <torch/csrc/autograd/custom_function.h>

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

Communicator& SavedGroup(AutogradContext* context) {
  return *reinterpret_cast<Communicator*>(context->saved_data["group"].toInt());
}

struct CopyFunction : torch::autograd::Function<CopyFunction> {
  static Variable forward(AutogradContext* context, const Variable& x, int64_t group) {
    context->saved_data["group"] = group;
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    at::Tensor sum = gradients[0].clone();
    SavedGroup(context).AllReduceSum(sum);
    return {sum, Variable()};
  }
};

struct SumFunction : torch::autograd::Function<SumFunction> {
  static Variable forward(AutogradContext* context, const Variable& x, int64_t group) {
    at::Tensor sum = x.clone();
    reinterpret_cast<Communicator*>(group)->AllReduceSum(sum);
    return sum;
  }
  static variable_list backward(AutogradContext*, variable_list gradients) { return {gradients[0], Variable()}; }
};

}  // namespace

at::Tensor CopyToGroup(const at::Tensor& x, Communicator& group) {
  return group.size() == 1 ? x : CopyFunction::apply(x, reinterpret_cast<int64_t>(&group));
}

at::Tensor SumOverGroup(const at::Tensor& x, Communicator& group) {
  return group.size() == 1 ? x : SumFunction::apply(x, reinterpret_cast<int64_t>(&group));
}

}  // namespace tessera
