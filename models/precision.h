// Defines the accumulation dtype: sinusoids, position tables, norm statistics and samplers compute in the wider of fp32
// and the model's dtype.
#pragma once

#include <ATen/ATen.h>

namespace tessera::models {

inline at::ScalarType AccumulationType(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

}  // namespace tessera::models
