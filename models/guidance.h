// Classifier-free guidance (Ho and Salimans, 2022): negative + scale · (positive − negative), as the weights of a sum;
// and the sum itself.
#pragma once

#include <ATen/ATen.h>

namespace tessera::models {

struct GuidanceWeights {
  double negative, positive;
};

GuidanceWeights ClassifierFreeGuidance(double scale);

// amount · guided · std(conditional) / std(guided) + (1 − amount) · guided, with the unbiased deviation over the whole
// of one image [channels, height, width].
at::Tensor RescaleGuidance(const at::Tensor& guided, const at::Tensor& conditional, double amount);

}  // namespace tessera::models
