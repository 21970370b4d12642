// Computes classifier-free guidance (Ho and Salimans, 2022): negative + scale · (positive − negative), both as the
// weights of a sum and as the rescaled result.
#pragma once

#include <ATen/ATen.h>

namespace tessera::models {

struct GuidanceWeights {
  double negative, positive;
};

GuidanceWeights ClassifierFreeGuidance(double scale);

// Returns amount · guided · std(conditional) / std(guided) + (1 − amount) · guided. The standard deviation is the
// unbiased one over a whole image [channels, height, width].
at::Tensor RescaleGuidance(const at::Tensor& guided, const at::Tensor& conditional, double amount);

// Returns `guided`, shortened so that its norm over the whole image [channels, height, width] is at most `limit` times
// that of `conditional`.
at::Tensor LimitNorm(const at::Tensor& guided, const at::Tensor& conditional, double limit);

// Returns `guided`, with each patch [channels, patch, patch] of the image scaled to the norm that it has in
// `conditional`.
at::Tensor KeepPatchNorms(const at::Tensor& guided, const at::Tensor& conditional, int64_t patch);

}  // namespace tessera::models
