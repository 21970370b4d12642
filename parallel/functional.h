// The collectives that model code may call, each with its gradient (forward | backward). A group of one returns its
// argument, or a view of it. Without a gradient, autograd is not involved.
//
// The gradients are those of a loss that is summed over the ranks, with one exception: after SumOverGroup the ranks
// hold equal values, and their loss counts once. All ranks must agree on whether `x` needs a gradient; otherwise the
// collectives of the backward pass would not match. `group` must outlive the graph.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "parallel/communicator.h"

namespace tessera::parallel {

// identity | all-reduce: the entry of a column-sharded product.
at::Tensor CopyToGroup(const at::Tensor& x, Communicator& group);

// all-reduce | identity: the exit of a row-sharded product.
at::Tensor SumOverGroup(const at::Tensor& x, Communicator& group);

// all-gather | reduce-scatter. `x` holds rows[rank] rows of dimension `dim`; the result holds all of them.
at::Tensor GatherDim(const at::Tensor& x, int64_t dim, at::IntArrayRef rows, Communicator& group);

// Concatenated runs of tokens, each distributed over the ranks: [run][rank] rows. A rank holds its part of the first
// run, followed by its part of the next one; whole tensors are in the order of the runs.
using TokenRuns = std::vector<std::vector<int64_t>>;

// all-gather | reduce-scatter of tokens [b, n, …], and reduce-scatter | all-gather.
at::Tensor GatherTokens(const at::Tensor& x, const TokenRuns& runs, Communicator& group);
at::Tensor ScatterTokens(const at::Tensor& x, const TokenRuns& runs, Communicator& group);

// Returns the product x Wᵀ + b of all tokens, of which `x` holds this rank's. Like GatherTokens and a product, but the
// backward pass gathers the tokens again for the gradient of the weight, so that only `x` is kept until then.
at::Tensor GatheredProduct(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           const TokenRuns& runs, Communicator& group);

// slice | all-gather. Returns a view of this rank's rows of `x`, which every rank holds as a whole.
at::Tensor TakeShard(const at::Tensor& x, int64_t dim, at::IntArrayRef rows, Communicator& group);

// all-to-all | reverse all-to-all. Turns this rank's rows[rank] rows, with a part for each rank [size, n, …], into this
// rank's part of all rows in rank order: [n of all, …].
at::Tensor PartsToRows(const at::Tensor& parts, at::IntArrayRef rows, Communicator& group);
at::Tensor RowsToParts(const at::Tensor& x, at::IntArrayRef rows, Communicator& group);

}  // namespace tessera::parallel
