// Computes which rows of a parameter a data rank keeps.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "models/loading/param_table.h"

namespace tessera::models {

// Rows [begin, end) of a rank's part of a parameter, along dimension 0.
struct RowSpan {
  int64_t begin = 0, end = 0;

  int64_t count() const { return end - begin; }
  at::Tensor Of(const at::Tensor& x) const { return x.narrow(0, begin, count()); }
};

// Returns the rows of data rank `rank` of `ranks`, which share the parameter out. Shares are uneven if the number of
// rows is not divisible, and empty if there are fewer rows than ranks.
inline RowSpan RowsOf(const Param& param, int rank, int ranks) {
  TORCH_CHECK(!param.shape.empty(), "the parameter ", param.spec.name, " has no rows");
  return {.begin = param.shape[0] * rank / ranks, .end = param.shape[0] * (rank + 1) / ranks};
}

// Returns the number of elements of one of its rows.
inline int64_t RowElements(const Param& param) {
  return c10::multiply_integers(param.shape.begin() + 1, param.shape.end());
}

}  // namespace tessera::models
