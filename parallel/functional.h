// The collectives that model code may reach, each with its gradient (forward | backward). A group of one returns its
// argument, or a view of it. Where no gradient is asked for, nothing of autograd is touched.
//
// The gradients are those of a loss that is summed over the ranks, with one exception: behind SumOverGroup the ranks
// hold equal values, and their loss counts once. All ranks must agree on whether `x` needs a gradient, or the
// collectives of the backward pass would not meet. `group` must outlive the graph.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "parallel/communicator.h"

namespace tessera::parallel {

// identity | all-reduce: entry of a column-sharded product.
at::Tensor CopyToGroup(const at::Tensor& x, Communicator& group);

// all-reduce | identity: exit of a row-sharded product.
at::Tensor SumOverGroup(const at::Tensor& x, Communicator& group);

// all-gather | reduce-scatter. `x` holds rows[rank] rows of dimension `dim`; the result holds all of them.
at::Tensor GatherDim(const at::Tensor& x, int64_t dim, at::IntArrayRef rows, Communicator& group);

// reduce-scatter | all-gather. This rank's rows of the sum over the ranks.
at::Tensor ScatterSum(const at::Tensor& x, int64_t dim, at::IntArrayRef rows, Communicator& group);

// Runs of tokens that lie one after another, each dealt out over the ranks: [run][rank] rows. A rank holds its part of
// the first run, then that of the next one; whole tokens are in the order of the runs.
using TokenRuns = std::vector<std::vector<int64_t>>;

// GatherDim of tokens [b, n, …], and ScatterSum.
at::Tensor GatherTokens(const at::Tensor& x, const TokenRuns& runs, Communicator& group);
at::Tensor ScatterTokens(const at::Tensor& x, const TokenRuns& runs, Communicator& group);

// The product x Wᵀ + b of all tokens, of which `x` holds this rank's: GatherTokens, where the backward pass gathers
// them once more for the gradient of the weight, so that no more than `x` is kept until then.
at::Tensor GatheredProduct(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           const TokenRuns& runs, Communicator& group);

// slice | all-gather. This rank's rows of what every rank holds whole; a view.
at::Tensor TakeShard(const at::Tensor& x, int64_t dim, at::IntArrayRef rows, Communicator& group);

// all-to-all | its reverse. This rank's rows[rank] rows in a part for each rank [size, n, …] become this rank's part of
// all rows, in the order of the ranks: [n of all, …].
at::Tensor PartsToRows(const at::Tensor& parts, at::IntArrayRef rows, Communicator& group);
at::Tensor RowsToParts(const at::Tensor& x, at::IntArrayRef rows, Communicator& group);

// +1 | -1. Every rank hands the tokens [..., n, h, d] that it holds to the next rank and returns those of the previous
// one. `owner` is the rank whose tokens `x` are, n = rows[owner]; the result is of (owner - 1) mod size.
at::Tensor RingShift(const at::Tensor& x, int owner, at::IntArrayRef rows, Communicator& group);

}  // namespace tessera::parallel
