// What a step of denoising takes of a device's memory beside weights, as the front end predicts it and the worker
// reserves and keeps it.
#pragma once

#include <cstdint>

namespace tessera::control {

// Values of a token that are alive at once inside a block, in widths of the model: residual, normed, q, k, v, the MLP's
// hidden layer and what these are made from.
inline constexpr int64_t kLiveWidths = 16;

// A job's modulations are computed and kept for so many of its steps at a time.
inline constexpr int64_t kModulatedSteps = 64;

}  // namespace tessera::control
