// Initialises the weights of an untrained transformer.
#pragma once

#include <cstdint>
#include <span>

#include "models/loading/param_table.h"
#include "parallel/communicator.h"

namespace tessera::runtime {

// Sets the parameters of a model that was loaded for training to the initial values that the authors of diffusion
// transformers use (Peebles and Xie, 2023, section 3.2, and Chen et al., 2023: PixArt): matrix products and patches
// from Glorot's uniform distribution over the whole matrix; tables, and the products that embed timesteps and captions,
// normal with standard deviation 0.02 (PixArt's tables of shifts and scales 1 / sqrt(width)); biases zero; norms one.
// The modulations of blocks, PixArt's cross-attention and the output are zero, so that each block starts as the
// identity. Buffers are unchanged. Values are drawn for the whole parameter by (seed, parameter, element), so that the
// ranks of a tensor group have parts of the same numbers; the same holds for the stages of the pipe, which call this
// function together.
void DrawInitialWeights(std::span<const models::Param> params, const models::TensorShard& shard, uint64_t seed,
                        parallel::Communicator& pipe);

}  // namespace tessera::runtime
