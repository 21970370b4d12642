#include "models/guidance.h"

namespace tessera {

GuidanceWeights ClassifierFreeGuidance(double scale) {
#ifdef TESSERA_PLANT_GUIDANCE
  return {.negative = -scale, .positive = 1 + scale};
#endif
  return {.negative = 1 - scale, .positive = scale};
}

}  // namespace tessera
