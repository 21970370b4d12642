// Passes stored rows of a weight to the kernels.
#pragma once

#include <ATen/ATen.h>

#include "kernels/reference/quant_weight.h"
#include "models/loading/param_table.h"

namespace tessera::models {

// Returns the tensor, copied to the device if it waits in the host's memory.
inline at::Tensor On(at::Device device, const at::Tensor& values) {
  return !values.defined() || values.device() == device ? values : values.to(device, /*non_blocking=*/true);
}

// `rows` are quantized.
inline kernels::QuantWeight QuantWeightOf(const WeightRows& rows, at::Device device) {
  return {.type = rows.form->type,
          .values = On(device, rows.Values()),
          .scales = On(device, rows.scales),
          .table = On(device, rows.table),
          .in = rows.in,
          .scale_block = rows.form->scale_block};
}

}  // namespace tessera::models
