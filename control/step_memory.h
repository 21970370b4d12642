// What a step of denoising takes of a device's memory beside weights, as the front end predicts it and the worker
// reserves and keeps it.
#pragma once

#include <cstdint>

namespace tessera::control {

// Values of a token that are alive at once inside a block, in widths of the model: residual, normed, q, k, v, the MLP's
// hidden layer and what these are made from.
inline constexpr int64_t kLiveWidths = 16;

// A block's modulation at a step, in widths: shift, scale and gate of an attention and of an MLP.
inline constexpr int64_t kModulationWidths = 6;

// Values of a pixel that are alive at once in an autoencoder with Stable Diffusion's plan of channels: 128 of them at
// full resolution, three times.
inline constexpr int64_t kDecoderValuesPerPixel = 384;

// Beside whole layers, the autoencoder has temporaries of a band of rows, each at most this large in main memory: the
// normalised rows, what the convolution makes of their order, and its result. Images smaller than a band have as much
// of them as of layers.
inline constexpr int64_t kHostBandBytes = int64_t{64} << 20;
inline constexpr int64_t kBandTemporaries = 3;

// A job's modulations are computed and kept for so many of its steps at a time.
inline constexpr int64_t kModulatedSteps = 64;

}  // namespace tessera::control
