// The operators before a product, in the form that the product takes: a product in fp8 gets rows that the
// operator has quantized as it computed them (kernels/quantized_ops.h), every other one numbers. Both forms give the
// same bits.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>

#include "models/layers/linear.h"

namespace tessera::models {

// Return the operator of kernels/ops.h with the same name as the input of `product`.
ProductInput LayerNormModulateFor(const Linear& product, const at::Tensor& x, const at::Tensor& shift,
                                  const at::Tensor& scale, double eps, const parallel::ForwardContext& context);
ProductInput LayerNormShiftFor(const Linear& product, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& shift, double eps, const parallel::ForwardContext& context);
std::tuple<at::Tensor, ProductInput> GatedResidualNormModulateFor(const Linear& product, const at::Tensor& x,
                                                                  const std::optional<at::Tensor>& gate,
                                                                  const at::Tensor& y, const at::Tensor& shift,
                                                                  const at::Tensor& scale, double eps,
                                                                  const parallel::ForwardContext& context);
std::tuple<at::Tensor, ProductInput> ResidualNormFor(const Linear& product, const at::Tensor& x, const at::Tensor& y,
                                                     const at::Tensor& weight, const at::Tensor& bias, double eps,
                                                     const parallel::ForwardContext& context);
ProductInput SwiGluFor(const Linear& product, const at::Tensor& gate, const at::Tensor& value,
                       const parallel::ForwardContext& context);

// RmsNorm, times 1 + scale if there is a scale [b, c].  x [b, n, c].
ProductInput ScaledRmsNormFor(const Linear& product, const at::Tensor& x, const at::Tensor& weight,
                              const std::optional<at::Tensor>& scale, double eps,
                              const parallel::ForwardContext& context);

// Returns `out` of GELU (tanh approximation) of `in` of x: the MLP of most blocks.
at::Tensor GeluTanhMlp(const Linear& in, const Linear& out, const ProductInput& x,
                       const parallel::ForwardContext& context);

}  // namespace tessera::models
