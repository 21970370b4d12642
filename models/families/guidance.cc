#include "models/families/guidance.h"

#include "base/macros/planted.h"
#include "kernels/ops.h"
#include "models/families/family.h"

namespace tessera::models {

namespace {

// Returns the sample standard deviation over the whole image. at::std would compute the same, but its sum depends on
// the number of threads.
at::Tensor Deviation(const at::Tensor& x) {
  const auto [mean, squares] = kernels::GroupMoments(x.reshape({1, 1, 1, -1}), /*groups=*/1);
  return (squares / static_cast<double>(x.numel() - 1)).sqrt().to(x.scalar_type()).squeeze();
}

}  // namespace

GuidanceWeights ClassifierFreeGuidance(double scale) {
  if (base::Planted("guidance")) return {.negative = -scale, .positive = 1 + scale};
  return {.negative = 1 - scale, .positive = scale};
}

at::Tensor RescaleGuidance(const at::Tensor& guided, const at::Tensor& conditional, double amount) {
  return guided * (Deviation(conditional) / Deviation(guided) * amount + (1 - amount));
}

std::optional<double> GuidanceBranch::WeightAt(int step, int steps) const {
  std::optional<double> weight;
  for (const GuidanceTerm& term : terms) {
    if (steps * term.start < step && step < steps * term.stop) weight = weight.value_or(0) + term.weight;
  }
  return weight;
}

}  // namespace tessera::models
