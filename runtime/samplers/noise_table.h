// Single-precision pieces of the noise tables, rounded operation by operation as the reference rounds them.
// Private to the samplers.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/samplers/sampler_config.h"

namespace tessera::runtime {

// sqrt((1 - alpha) / alpha) of the table.
std::vector<float> SigmaTable(const SamplerConfig& config);

// Natural logs as numpy's vectorised single-precision log rounds them (up to one unit in the last place from the true
// value). Arguments must be positive and finite.
std::vector<float> ReferenceLogs(const std::vector<float>& values);

// n points from first to last as torch.linspace: from both ends to the middle, with fused multiply-add.
std::vector<float> LinspaceFloat(double first, double last, int64_t n);

}  // namespace tessera::runtime
