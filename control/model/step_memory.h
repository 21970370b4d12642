// Defines the constants of a step's and the decoder's memory that both the computation and its prediction
// (control/model/model_cost.h) use.
#pragma once

#include <cstdint>

namespace tessera::control {

// In addition to whole layers, the autoencoder has temporaries of a band of rows, each at most this large in main
// memory: the normalised rows, the convolution's reordered input, and its result. An image smaller than a band has as
// much of them as of layers.
inline constexpr int64_t kHostBandBytes = int64_t{64} << 20;
inline constexpr int64_t kBandTemporaries = 3;

// A job's modulations are computed and kept for this many of its steps at a time.
inline constexpr int64_t kModulatedSteps = 64;

}  // namespace tessera::control
