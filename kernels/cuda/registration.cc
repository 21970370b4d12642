// Registers the operators for CUDA tensors when the plug-in is loaded.
#include <torch/library.h>

#include "kernels/cuda/operators.h"

namespace tessera::kernels::cuda {

TORCH_LIBRARY_IMPL(tessera, CUDA, m) {
  m.impl("layer_norm_modulate", LayerNormModulate);
  m.impl("layer_norm_shift", LayerNormShift);
  m.impl("gated_residual", GatedResidual);
  m.impl("gated_residual_norm_modulate", GatedResidualNormModulate);
  m.impl("rms_norm", RmsNorm);
  m.impl("qkv_norm_rope", QkvNormRope);
  m.impl("merge_attention", MergeAttention);
  m.impl("gelu_tanh", GeluTanh);
  m.impl("geglu_tanh", GegluTanh);
  m.impl("swiglu", SwiGlu);
  m.impl("gelu", Gelu);
  m.impl("silu", Silu);
  m.impl("sigmoid", Sigmoid);
  m.impl("channel_affine", ChannelAffine);
  m.impl("group_moments", GroupMoments);
  m.impl("attention", Attention);
  m.impl("attention_with_lse", AttentionWithLse);
  m.impl("linear_gelu_tanh", LinearGeluTanh);
  m.impl("weighted_sums", WeightedSums);
  m.impl("widen_weight", WidenWeight);
  m.impl("quant_product", QuantProduct);
  m.impl("quantize_activations", QuantizeActivations);
  m.impl("fp8_product", Fp8Product);
  m.impl("quantized_layer_norm", QuantizedLayerNorm);
  m.impl("quantized_residual_norm", QuantizedResidualNorm);
  m.impl("quantized_rms_norm", QuantizedRmsNorm);
  m.impl("quantized_gelu_tanh", QuantizedGeluTanh);
  m.impl("quantized_swiglu", QuantizedSwiGlu);
}

}  // namespace tessera::kernels::cuda
