// Makes quantized weights of random bytes, all of whose values are finite.
#pragma once

#include <ATen/ATen.h>

#include "kernels/reference/quant_weight.h"

namespace tessera {

// Returns a weight [out, in]. kNibble has a scale for `scale_block` values.
inline kernels::QuantWeight RandomQuantWeight(kernels::QuantType type, int64_t out, int64_t in,
                                              int64_t scale_block = 64) {
  const bool is_nibble = type == kernels::QuantType::kNibble;
  kernels::QuantWeight weight{.type = type,
                              .values = at::randint(256, {out, kernels::RowBytes(type, in)}, at::kByte),
                              .in = in,
                              .scale_block = is_nibble ? scale_block : 0};
  // The exponents of halves and of fp8 codes lose their highest bit and others: no infinities, no NaN, no large
  // numbers.
  if (type != kernels::QuantType::kInt8 && !is_nibble) weight.values.bitwise_and_(0xb3);
  if (!kernels::HasOwnScales(type)) weight.scales = at::randn({out, is_nibble ? in / scale_block : 1}) * 0.02;
  if (is_nibble) weight.table = at::randn({16});
  return weight;
}

}  // namespace tessera
