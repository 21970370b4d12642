// CPU versions of the operators that make one pass over rows of channels. Statistics and arithmetic are in fp32.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace tessera::kernels::cpu {

// Rows [first, last) of tokens, contiguous and `channels` wide. The two vectors of a row belong to its batch entry, row
// / rows_per_batch; those of consecutive entries are `vector_stride` elements apart.
struct Rows {
  int64_t first;
  int64_t last;
  int64_t channels;
  int64_t rows_per_batch;
  int64_t vector_stride;
};

// The heads of one token. They are contiguous in the input; in the output each group has its own place.
struct TokenHeads {
  int64_t groups;
  int64_t heads;  // in each group
  int64_t channels;
  int64_t group_stride;
  int64_t head_stride;
};

// What norm_rope applies to each head. `weight`, `bias` [channels] have the type of the heads; null means no norm, or
// one without mean and bias (RMSNorm). cos, sin [channels / 2]; null means no rotation.
struct HeadFunction {
  const void* weight;
  const void* bias;
  float eps;
  const float* cos;
  const float* sin;
};

enum class Element { kFloat, kBf16 };

// The versions for one instruction set. All pointers are to elements of the given type. `out` may be the input.
struct ElementwiseKernels {
  // layer_norm(x) * (offset + scale) + shift
  void (*layer_norm_modulate)(Element, const Rows&, const void* x, const void* shift, const void* scale, float offset,
                              float eps, void* out);
  // x + gate * y
  void (*gated_residual)(Element, const Rows&, const void* x, const void* gate, const void* y, void* out);
  // x * rsqrt(mean(x²) + eps) * weight
  void (*rms_norm)(Element, const Rows&, const void* x, const void* weight, float eps, void* out);
  // norm and rotation of one token's heads
  void (*norm_rope)(Element, const TokenHeads&, const HeadFunction&, const void* x, void* out);
  // x * (1 + tanh(sqrt(2/π) (x + 0.044715 x³))) / 2 of `count` elements
  void (*gelu_tanh)(Element, int64_t count, const void* x, void* out);
  // x / (1 + e^-x) of `count` elements
  void (*silu)(Element, int64_t count, const void* x, void* out);
  // gate / (1 + e^-gate) * value of `count` elements
  void (*swiglu)(Element, int64_t count, const void* gate, const void* value, void* out);
  // x * factor + offset of `count` elements, followed by SiLU if `silu` is set
  void (*affine)(Element, int64_t count, float factor, float offset, bool silu, const void* x, void* out);
  // mean of `count` elements, and the sum of squared differences from it
  void (*moments)(Element, int64_t count, const void* x, float* mean, float* squares);
  // Gradients. The gradient of a vector is a sum over the rows, which must all belong to one batch entry, and is added
  // to [channels] in fp32.
  //
  // Gradient of layer_norm_modulate, given the result's gradient `of_out` and, if not null, a further gradient of x,
  // `of_x`, which is added.
  void (*norm_backward)(Element, const Rows&, const void* of_out, const void* of_x, const void* x, const void* scale,
                        float offset, float eps, void* gradient, float* of_shift, float* of_scale);
  // Gradients of gated_residual with respect to y and the gate, given that of its result.
  void (*gate_backward)(Element, const Rows&, const void* of_out, const void* gate, const void* y, void* of_y,
                        float* of_gate);
  // Gradient of gelu_tanh at x, given that of its result.
  void (*gelu_tanh_backward)(Element, int64_t count, const void* of_out, const void* x, void* of_x);
  // Gradients at one key for `count` queries. Given `scores`, k qᵀ, and `of_weights`, v times the result's gradient,
  // both in fp32, writes the weights exp(scores * scale + bias - lse) and the gradient of k qᵀ. `delta` is the dot
  // product of each query's result with its gradient.
  void (*weights_backward)(Element, int64_t count, float scale, float bias, const float* lse, const float* delta,
                           const float* scores, const float* of_weights, void* weights, void* of_scores);
  // sum of x * y over `count` elements
  float (*dot)(Element, int64_t count, const void* x, const void* y);
  // Converts column `column` of an fp32 matrix with row stride `stride` to `count` elements.
  void (*narrow_column)(Element, int64_t count, int64_t stride, const float* column, void* out);
  // Quantizes one row of `count` elements to e4m3 codes, as kernels/quantized/quant_rows.h defines it for activations,
  // bit for bit. Returns the row's scale.
  float (*quantize_row)(Element, int64_t count, const void* x, uint8_t* codes);
  // Largest sum of squares among `count` vectors that are `stride` elements apart; NaN if any sum is NaN.
  float (*largest_square)(Element, int64_t count, int64_t stride, int64_t channels, const void* x);
};

extern const ElementwiseKernels kElementwiseBaseline;
extern const ElementwiseKernels kElementwiseAvx2;
extern const ElementwiseKernels kElementwiseAvx512;

const ElementwiseKernels& ElementwiseFor(Isa isa);

}  // namespace tessera::kernels::cpu
