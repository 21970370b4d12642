// Classifier-free guidance (Ho and Salimans, 2022): negative + scale · (positive − negative), as the weights of a sum.
#pragma once

namespace tessera {

struct GuidanceWeights {
  double negative, positive;
};

GuidanceWeights ClassifierFreeGuidance(double scale);

}  // namespace tessera
