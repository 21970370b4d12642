// One forward pass of a transformer on all ranks of a mesh.
#pragma once

#include <ATen/ATen.h>

#include <span>

#include "models/param_table.h"
#include "models/transformer.h"
#include "parallel/mesh.h"
#include "parallel/rank_groups.h"

namespace tessera {

// The blocks of stage `stage` of `stages`: [begin, end), contiguous and as even as they can be.
struct BlockRange {
  int begin = 0, end = 0;
};
BlockRange StageBlocks(int blocks, int stage, int stages);

// What a rank of the mesh holds of a transformer with so many blocks.
WeightShare ShareOf(const Mesh& mesh, int rank, int blocks);

// The head's result for the whole image [b, n, features], equal on every rank. Every rank passes the same whole input
// and holds its tensor shard of the weights of its stage's blocks. Tokens are spread over the sequence group, blocks
// over the pipe; the whole image goes through the stages at once, which is exact.
at::Tensor ForwardOnMesh(const Transformer& transformer, const TransformerInput& input, const RankGroups& groups,
                         std::span<const int> skipped_blocks = {});

}  // namespace tessera
