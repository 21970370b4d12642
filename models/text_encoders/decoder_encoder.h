// DecoderEncoder reads texts with a decoder-only language model: Qwen3 (Yang et al., 2025), Mistral 3 (Mistral AI,
// 2025) and the text part of Qwen2.5-VL (Bai et al., 2025). RMSNorm before each part, rotary positions, grouped keys
// and values, causal attention, SwiGLU. The model's hidden states are its result; no token is generated. Qwen2.5-VL
// also reads pictures: the tokens that its vision tower makes of them take the places of their tokens in the text.
#pragma once

#include <optional>
#include <vector>

#include "models/layers/linear.h"
#include "models/layers/token_embedding.h"
#include "models/text_encoders/qwen_vision.h"
#include "models/text_encoders/text_encoder.h"

namespace tessera::models {

// Used by one thread.
class DecoderEncoder final : public TextEncoder {
 public:
  DecoderEncoder(const DecoderConfig& config, ParamTable& table);
  // With a vision tower, whose layers are the blocks of the table after those of the text.
  DecoderEncoder(const VisionLanguageConfig& config, ParamTable& table);

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

  // EncodedTokens::picture_tokens.
  at::Tensor PictureTokens(const TextEncoderInput& input, const parallel::ForwardContext& context) const;
  // The embeddings of the tokens, with those of pictures in their places: [b, t, width].
  at::Tensor Embed(const TextEncoderInput& input, const at::Tensor& picture_tokens) const;
  // The positions of the tokens as angles [t, head_dim / 2] in fp64, on the host.
  at::Tensor Angles(const TextEncoderInput& input) const;

  DecoderConfig config_;
  TokenEmbedding embedding_;
  std::vector<Layer> layers_;
  at::Tensor final_norm_;  // [width]
  // Only if the model reads pictures.
  std::optional<QwenVision> vision_;
  int64_t picture_id_ = -1;
  std::vector<int64_t> sections_;  // how many of a head's frequencies encode each axis
};

}  // namespace tessera::models
