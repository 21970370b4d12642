// Computes single-precision parts of the noise tables, with every operation rounded like in the reference. Private to
// the samplers.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/samplers/sampler_config.h"

namespace tessera::runtime {

// Returns sqrt((1 - alpha) / alpha) of the table.
std::vector<float> SigmaTable(const SamplerConfig& config);

// Returns natural logarithms rounded like numpy's vectorised single-precision log (up to one unit in the last place
// from the true value). Arguments must be positive and finite.
std::vector<float> ReferenceLogs(const std::vector<float>& values);

// Returns n points from first to last like torch.linspace: from both ends to the middle, with fused multiply-add.
std::vector<float> LinspaceFloat(double first, double last, int64_t n);

}  // namespace tessera::runtime
