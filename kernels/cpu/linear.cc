#include <ATen/core/dispatch/Dispatcher.h>

#include "kernels/cpu/operators.h"

namespace tessera::cpu {
namespace {

// LibTorch reaches oneDNN's blocked weights through two operators of its own that have no C++ declaration.
using Reorder = at::Tensor(const at::Tensor& weight, std::optional<c10::SymInt> rows);
using Product = at::Tensor(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           std::string_view activation, c10::List<std::optional<at::Scalar>> scalars,
                           std::optional<std::string_view> algorithm);

// The layout suits any number of rows; it was chosen with this many in mind.
constexpr int64_t kTypicalRows = 2048;
// Below this oneDNN's reordering at every call costs nothing worth the opaque layout.
constexpr int64_t kFewestElements = 64 * 64;

}  // namespace

at::Tensor PackWeight(const at::Tensor& weight, Isa isa) {
  const bool gains = weight.is_cpu() && weight.layout() == at::kStrided && weight.scalar_type() == at::kBFloat16 &&
                     weight.dim() == 2 && weight.numel() >= kFewestElements && isa >= Isa::kAvx512;
  const auto reorder = c10::Dispatcher::singleton().findSchema({"mkldnn::_reorder_linear_weight", ""});
  if (!gains || !reorder.has_value()) return weight;
  return reorder->typed<Reorder>().call(weight.detach().contiguous(), c10::SymInt(kTypicalRows));
}

at::Tensor PackedLinearProduct(const at::Tensor& x, const at::Tensor& packed, const std::optional<at::Tensor>& bias) {
  static const auto product =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<Product>();
  return product.call(x.contiguous(), packed, bias, "none", c10::List<std::optional<at::Scalar>>(), std::nullopt);
}

}  // namespace tessera::cpu
