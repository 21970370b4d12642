// The collectives that model code may reach, each with its gradient (forward | backward). A group of one returns its
// argument unchanged.
#pragma once

#include <ATen/ATen.h>

#include "parallel/communicator.h"

namespace tessera {

// identity | all-reduce: entry of a column-sharded product.
at::Tensor CopyToGroup(const at::Tensor& x, Communicator& group);

// all-reduce | identity: exit of a row-sharded product.
at::Tensor SumOverGroup(const at::Tensor& x, Communicator& group);

}  // namespace tessera
