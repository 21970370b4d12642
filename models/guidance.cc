#include "models/guidance.h"

#include "kernels/planted.h"
#include "models/family.h"

namespace tessera {

GuidanceWeights ClassifierFreeGuidance(double scale) {
  if (Planted("guidance")) return {.negative = -scale, .positive = 1 + scale};
  return {.negative = 1 - scale, .positive = scale};
}

at::Tensor RescaleGuidance(const at::Tensor& guided, const at::Tensor& conditional, double amount) {
  return guided * (at::std(conditional) / at::std(guided) * amount + (1 - amount));
}

std::optional<double> GuidanceBranch::WeightAt(int step, int steps) const {
  std::optional<double> weight;
  for (const GuidanceTerm& term : terms) {
    if (steps * term.start < step && step < steps * term.stop) weight = weight.value_or(0) + term.weight;
  }
  return weight;
}

}  // namespace tessera
