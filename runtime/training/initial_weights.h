// The weights of a transformer that has not been trained at all.
#pragma once

#include <cstdint>
#include <span>

#include "models/loading/param_table.h"
#include "parallel/communicator.h"

namespace tessera::runtime {

// Writes into the parameters of a model that was loaded for training what the authors of diffusion transformers start
// from (Peebles and Xie, 2023, section 3.2, and Chen et al., 2023: PixArt): matrix products and patches by Glorot's
// uniform distribution over the whole matrix; tables, and the products that embed timesteps and captions, normal with
// deviation 0.02 (PixArt's tables of shifts and scales 1 / sqrt(width)); biases zero; norms one. What blocks are
// modulated by, PixArt's cross-attention and the output begin at zero, so that each block begins as the identity.
// Buffers stay as they are. Drawn for the whole parameter by (seed, parameter, element), so that the ranks of a tensor
// group have their parts of the same numbers; so have the stages of a pipe that have its blocks, which call this
// together.
void DrawInitialWeights(std::span<const models::Param> params, const models::TensorShard& shard, uint64_t seed,
                        parallel::Communicator& pipe);

}  // namespace tessera::runtime
