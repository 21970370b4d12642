// CPU versions of the operators that make one pass over rows of channels. Statistics and arithmetic in fp32.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace tessera::kernels::cpu {

// Rows [first, last) of tokens, `channels` wide and contiguous. The two vectors belong to the row's batch entry:
// row / rows_per_batch, and consecutive entries lie `vector_stride` elements apart.
struct Rows {
  int64_t first;
  int64_t last;
  int64_t channels;
  int64_t rows_per_batch;
  int64_t vector_stride;
};

// The heads of one token: one after another in the input, in groups that lie anywhere in the output.
struct TokenHeads {
  int64_t groups;
  int64_t heads;  // of a group
  int64_t channels;
  int64_t group_stride;
  int64_t head_stride;
};

// What is done to each of them. `weight`, `bias` [channels] as the heads are, null: no norm, or one without mean and
// bias; cos, sin [channels / 2], null: no rotation.
struct HeadFunction {
  const void* weight;
  const void* bias;
  float eps;
  const float* cos;
  const float* sin;
};

enum class Element { kFloat, kBf16 };

// One instruction set's versions. All pointers are to elements of the type given. `out` may be the input.
struct ElementwiseKernels {
  // layer_norm(x) * (offset + scale) + shift
  void (*layer_norm_modulate)(Element, const Rows&, const void* x, const void* shift, const void* scale, float offset,
                              float eps, void* out);
  // x + gate * y
  void (*gated_residual)(Element, const Rows&, const void* x, const void* gate, const void* y, void* out);
  // x * rsqrt(mean(x²) + eps) * weight
  void (*rms_norm)(Element, const Rows&, const void* x, const void* weight, float eps, void* out);
  // The norm and the rotation of one token's heads
  void (*norm_rope)(Element, const TokenHeads&, const HeadFunction&, const void* x, void* out);
  // x * (1 + tanh(sqrt(2/π) (x + 0.044715 x³))) / 2 of `count` elements
  void (*gelu_tanh)(Element, int64_t count, const void* x, void* out);
  // x / (1 + e^-x) of `count` elements
  void (*silu)(Element, int64_t count, const void* x, void* out);
  // x * factor + offset of `count` elements, and its silu
  void (*affine)(Element, int64_t count, float factor, float offset, bool silu, const void* x, void* out);
  // The mean of `count` elements, and the sum of their squared differences from it
  void (*moments)(Element, int64_t count, const void* x, float* mean, float* squares);
  // Gradients. Those of vectors are sums over the rows, which all belong to one batch entry, and are added to
  // [channels] in fp32.
  //
  // Of layer_norm_modulate, given that of its result, `of_out`, and where not null that of x from elsewhere, `of_x`
  void (*norm_backward)(Element, const Rows&, const void* of_out, const void* of_x, const void* x, const void* scale,
                        float offset, float eps, void* gradient, float* of_shift, float* of_scale);
  // Of gated_residual, given that of its result: of y and of the gate
  void (*gate_backward)(Element, const Rows&, const void* of_out, const void* gate, const void* y, void* of_y,
                        float* of_gate);
  // Of gelu_tanh at x, given that of its result
  void (*gelu_tanh_backward)(Element, int64_t count, const void* of_out, const void* x, void* of_x);
  // Of one key over `count` queries: from `scores`, k qᵀ, and `of_weights`, v times the result's gradient, both in
  // fp32, the weights exp(scores * scale + bias - lse) and the gradient of k qᵀ. `delta` is each query's result times
  // its gradient.
  void (*weights_backward)(Element, int64_t count, float scale, float bias, const float* lse, const float* delta,
                           const float* scores, const float* of_weights, void* weights, void* of_scores);
  // The sum of x * y over `count` elements
  float (*dot)(Element, int64_t count, const void* x, const void* y);
  // Column `column` of a matrix in fp32, `stride` apart, as `count` elements
  void (*narrow_column)(Element, int64_t count, int64_t stride, const float* column, void* out);
  // The largest sum of squares of `count` vectors, `stride` elements apart; not a number if any is.
  float (*largest_square)(Element, int64_t count, int64_t stride, int64_t channels, const void* x);
};

extern const ElementwiseKernels kElementwiseBaseline;
extern const ElementwiseKernels kElementwiseAvx2;
extern const ElementwiseKernels kElementwiseAvx512;

const ElementwiseKernels& ElementwiseFor(Isa isa);

}  // namespace tessera::kernels::cpu
