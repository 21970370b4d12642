#include "models/families/guidance.h"

#include <limits>

#include "base/macros/planted.h"
#include "kernels/ops.h"
#include "models/families/family.h"
#include "models/token_grid.h"

namespace tessera::models {

namespace {

// Returns the sample standard deviation over the whole image. at::std would compute the same, but its sum depends on
// the number of threads.
at::Tensor Deviation(const at::Tensor& x) {
  const auto [mean, squares] = kernels::GroupMoments(x.reshape({1, 1, 1, -1}), /*groups=*/1);
  return (squares / static_cast<double>(x.numel() - 1)).sqrt().to(x.scalar_type()).squeeze();
}

// Returns the norm over all elements, summed in an order that does not depend on the number of threads.
at::Tensor Norm(const at::Tensor& x) {
  const auto [mean, squares] = kernels::GroupMoments(x.reshape({1, 1, 1, -1}), /*groups=*/1);
  return (squares + mean.square() * static_cast<double>(x.numel())).sqrt().squeeze();
}

}  // namespace

GuidanceWeights ClassifierFreeGuidance(double scale) {
  if (base::Planted("guidance")) return {.negative = -scale, .positive = 1 + scale};
  return {.negative = 1 - scale, .positive = scale};
}

at::Tensor RescaleGuidance(const at::Tensor& guided, const at::Tensor& conditional, double amount) {
  return guided * (Deviation(conditional) / Deviation(guided) * amount + (1 - amount));
}

at::Tensor LimitNorm(const at::Tensor& guided, const at::Tensor& conditional, double limit) {
  if (base::Planted("guidance_norm_not_limited")) return guided;
  const at::Tensor factor = Norm(conditional) * limit / Norm(guided).clamp_min(std::numeric_limits<double>::min());
  return guided * factor.clamp_max(1).to(guided.scalar_type());
}

at::Tensor KeepPatchNorms(const at::Tensor& guided, const at::Tensor& conditional, int64_t patch) {
  if (base::Planted("guidance_patch_norms_not_kept")) return guided;
  const TokenGrid grid{.height = guided.size(1) / patch, .width = guided.size(2) / patch};
  const auto tokens = [&](const at::Tensor& image) { return Patchify(image.unsqueeze(0), patch); };
  const auto norms = [&](const at::Tensor& image) {
    const at::Tensor squares = tokens(image).to(at::kDouble).square();
    at::Tensor sum = squares.select(2, 0);
    for (int64_t i = 1; i < squares.size(2); ++i) sum = sum + squares.select(2, i);
    return sum.sqrt().unsqueeze(2);
  };
  const at::Tensor factors = norms(conditional) / norms(guided).clamp_min(std::numeric_limits<double>::min());
  return Unpack(tokens(guided) * factors.to(guided.scalar_type()), grid, patch).squeeze(0);
}

std::optional<double> GuidanceBranch::WeightAt(int step, int steps, double timestep) const {
  std::optional<double> weight;
  for (const GuidanceTerm& term : terms) {
    const bool in_steps = steps * term.start < step && step < steps * term.stop;
    if (in_steps && term.least_timestep <= timestep) weight = weight.value_or(0) + term.weight;
  }
  return weight;
}

}  // namespace tessera::models
