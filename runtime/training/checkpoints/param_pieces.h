// Computes where a rank's part of a parameter is in the whole parameter, from the same description that loading uses.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "models/loading/param_table.h"
#include "runtime/training/checkpoints/box.h"
#include "runtime/training/checkpoints/checkpoint.h"

namespace tessera::runtime {

// A box of the whole parameter, and its place in the rank's tensor.
struct PlacedBox {
  Box whole;
  Box local;  // of the same extent
};

// Returns a tensor rank's part of a parameter: one box, or one for each packed part of a row product's input. None is
// empty.
std::vector<PlacedBox> BoxesOf(const models::ParamSpec& spec, const models::TensorShard& shard);

// Rows [begin, end) of a rank's part, along dimension 0.
struct RowRange {
  int64_t begin = 0;
  int64_t end = std::numeric_limits<int64_t>::max();
};

// Returns the part as pieces of a checkpoint's tensor of that name, which has the parameter's shape: the parameter
// itself, a moment, or its average. `local` is this rank's part, or the given rows of it if other data ranks hold the
// rest. For a parameter without dimensions, a range holds all of it if it begins at 0, otherwise nothing.
std::vector<Piece> PiecesOf(const std::string& name, const models::ParamSpec& spec, const models::TensorShard& shard,
                            const at::Tensor& local, const RowRange& rows = {});

}  // namespace tessera::runtime
