// Operators that quantize the rows that they compute, for products in fp8. Each has the bits of QuantizeActivations
// after the operators of kernels/ops.h that its comment names, whose rows are never written to memory: the numbers are
// rounded to the dtype of x, and then quantized. Shapes, dtypes and the contract for images are those of kernels/ops.h.
// No operator here has a gradient.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>

namespace tessera::kernels {

// What QuantizeActivations returns for rows of `dtype`: the input of Fp8Product.
struct QuantizedRows {
  at::Tensor codes;   // [..., in] in uint8
  at::Tensor scales;  // [...] in fp32
  at::ScalarType dtype = at::kFloat;
};

// LayerNormModulate.
QuantizedRows QuantizedLayerNormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale,
                                         double eps);

// LayerNormShift.
QuantizedRows QuantizedLayerNormShift(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& shift,
                                      double eps);

// GatedResidualNormModulate, whose sum is returned as it is.
std::tuple<at::Tensor, QuantizedRows> QuantizedResidualNormModulate(const at::Tensor& x,
                                                                    const std::optional<at::Tensor>& gate,
                                                                    const at::Tensor& y, const at::Tensor& shift,
                                                                    const at::Tensor& scale, double eps);

// ResidualNorm, whose sum is returned as it is.
std::tuple<at::Tensor, QuantizedRows> QuantizedResidualNorm(const at::Tensor& x, const at::Tensor& y,
                                                            const at::Tensor& weight, const at::Tensor& bias,
                                                            double eps);

// RmsNorm, and then, after a rounding to the dtype, a product with `factor` [b, c] if there is one.  x [b, n, c].
QuantizedRows QuantizedRmsNorm(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& factor,
                               double eps);

// GeluTanh and SwiGlu.
QuantizedRows QuantizedGeluTanh(const at::Tensor& x);
QuantizedRows QuantizedSwiGlu(const at::Tensor& gate, const at::Tensor& value);

}  // namespace tessera::kernels
