// Defines the constants of a denoising step's memory on a device, excluding weights. The front end predicts with them,
// and the worker reserves and limits by them.
#pragma once

#include <cstdint>

namespace tessera::control {

// Live values per token inside a block, as a multiple of the model's width: residual, normed, q, k, v, the MLP's hidden
// layer and their inputs.
inline constexpr int64_t kLiveWidths = 16;

// A block's modulation at one step, as a multiple of the width: shift, scale and gate of attention and MLP.
inline constexpr int64_t kModulationWidths = 6;

// Live values per pixel in an autoencoder with Stable Diffusion's channel plan: three tensors of 128 channels at full
// resolution.
inline constexpr int64_t kDecoderValuesPerPixel = 384;

// In addition to whole layers, the autoencoder has temporaries of a band of rows, each at most this large in main
// memory: the normalised rows, the convolution's reordered input, and its result. An image smaller than a band has as
// much of them as of layers.
inline constexpr int64_t kHostBandBytes = int64_t{64} << 20;
inline constexpr int64_t kBandTemporaries = 3;

// A job's modulations are computed and kept for this many of its steps at a time.
inline constexpr int64_t kModulatedSteps = 64;

}  // namespace tessera::control
