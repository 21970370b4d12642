// The arguments of QkvNormRope (kernels/ops.h): norms, rotations and places of the heads of an attention.
#pragma once

#include <ATen/ATen.h>

namespace tessera::kernels {

// The norm of a head's queries or keys over its channels: none if both tensors are undefined, RMSNorm with a weight
// [d], LayerNorm if there is also a bias [d].
struct HeadNorm {
  at::Tensor weight, bias;
  double eps = 0;
};

// The angles of rotary positions (Su et al., 2021) as tables [n, d/2] in max(fp32, dtype): channels 2k and 2k + 1 of a
// token are rotated by its angle k. Undefined tables mean no rotation.
struct RotaryTables {
  at::Tensor cos, sin;
};

// Output tensors for queries, keys and values, each [b, n, g, h/g, d] with the heads in g groups. Strides are
// arbitrary, except that the last is 1. An undefined tensor means that `packed` does not contain that part.
struct HeadsOut {
  at::Tensor q, k, v;
};

}  // namespace tessera::kernels
