// Attention of a rank's queries over keys and values that are distributed over a ring of ranks (Liu et al., 2023, "Ring
// Attention"): keys and values make one round, and partial results are merged by their log-sum-exp.
//
// The backward pass makes another round: keys and values travel with the gradients that each rank adds to them, and the
// weights of the attention are recomputed from the log-sum-exp (Dao et al., 2022). Between the two passes a rank keeps
// only its own queries, keys, values, result and log-sum-exp.
//
// Shapes: b batch, n local queries, t local keys, h heads, d head_dim.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <vector>

#include "parallel/communicator.h"

namespace tessera::parallel {

// Receive buffers, reused by all attentions of a pass without gradients.
struct RingBuffers {
  std::array<at::Tensor, 2> in_turn;
};

// q [b, n, h, d]; k, v [b, t, h, d] with t = rows[rank]; rows[r] is the number of keys of rank r. Returns [b, n, h, d].
// Differentiable: all ranks must agree on whether a gradient is needed, and if so the group must outlive the graph. A
// rank without queries or keys takes part like any other. `buffers` may be modified.
at::Tensor RingAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                         const std::vector<int64_t>& rows, Communicator& ring, RingBuffers& buffers);

}  // namespace tessera::parallel
