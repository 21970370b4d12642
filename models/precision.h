// Islands of precision: sinusoids, position tables, norms' statistics and samplers compute in max(fp32, model dtype).
#pragma once

#include <ATen/ATen.h>

namespace tessera {

inline at::ScalarType IslandType(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

}  // namespace tessera
