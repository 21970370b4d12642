// Attention of a rank's queries over keys and values that are spread over a ring of ranks (Liu et al., 2023, "Ring
// Attention"): keys and values go round once, and partial results are merged by their log-sum-exp.
//
// The gradient goes round once more: keys and values travel with the gradients that each rank adds to them, and the
// weights of the attention are computed again from the log-sum-exp (Dao et al., 2022), so that no more is kept between
// the two than a rank's own queries, keys, values, result and log-sum-exp.
//
// Shapes: b batch, n local queries, t local keys, h heads, d head_dim.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <vector>

#include "parallel/communicator.h"

namespace tessera::parallel {

// Memory for what arrives, used again by all attentions of a pass that asks for no gradient.
struct RingBuffers {
  std::array<at::Tensor, 2> in_turn;
};

// q [b, n, h, d]; k, v [b, t, h, d], t = rows[rank]; rows[r] those of rank r. Returns [b, n, h, d]. Differentiable: all
// ranks agree on whether a gradient is asked for, and then the group outlives the graph. A rank without queries or keys
// takes part like any other. `buffers` may be written.
at::Tensor RingAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                         const std::vector<int64_t>& rows, Communicator& ring, RingBuffers& buffers);

}  // namespace tessera::parallel
