// DecoderEncoder reads texts with a decoder-only language model: Qwen3 (Yang et al., 2025), Mistral 3 (Mistral AI,
// 2025) and the text part of Qwen2.5-VL (Bai et al., 2025). RMSNorm before each part, rotary positions, grouped keys
// and values, causal attention, SwiGLU. The model's hidden states are its result; no token is generated.
#pragma once

#include <vector>

#include "models/layers/linear.h"
#include "models/text_encoders/text_encoder.h"

namespace tessera::models {

// Used by one thread.
class DecoderEncoder final : public TextEncoder {
 public:
  DecoderEncoder(const DecoderConfig& config, ParamTable& table);

  // Layers after the last selected state do not run.
  EncodedTokens Forward(const TextEncoderInput& input, const parallel::ForwardContext& context) const override;

 private:
  struct Layer {
    Layer(const std::string& name, const DecoderConfig& config, ParamTable& table);
    at::Tensor attention_norm, mlp_norm;  // [width]
    Linear qkv;
    at::Tensor query_norm, key_norm;  // [head_dim]; undefined if the model has none
    Linear out, gate_and_value, mlp_out;
  };

  DecoderConfig config_;
  at::Tensor embedding_;  // [vocabulary, width]
  std::vector<Layer> layers_;
  at::Tensor final_norm_;  // [width]
};

}  // namespace tessera::models
