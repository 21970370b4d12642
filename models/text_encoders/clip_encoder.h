// ClipEncoder implements the text encoder of CLIP (Radford et al., 2021): learned positions, causal attention,
// LayerNorm before each part.
#pragma once

#include <vector>

#include "models/layers/linear.h"
#include "models/text_encoders/text_encoder.h"

namespace tessera::models {

// The mask of its input is not used: padding comes after the text, which causal attention never looks ahead to.
class ClipEncoder final : public TextEncoder {
 public:
  ClipEncoder(const ClipConfig& config, ParamTable& table);

  // pooled: the final state at the end token, normalised and, if there is a projection, projected.
  EncodedTokens Forward(const TextEncoderInput& input, const parallel::ForwardContext& context) const override;

 private:
  struct Norm {
    Norm(const ParamScope& scope, int64_t width);
    at::Tensor weight, bias;  // [width]
  };
  struct Layer {
    Layer(const ParamScope& scope, const ClipConfig& config);
    Norm attention_norm, mlp_norm;
    Linear qkv, out, mlp_in, mlp_out;
  };

  at::Tensor Normalise(const at::Tensor& x, const Norm& norm) const;
  // [b, t] ids → [b]: the position whose state is the pooled output.
  at::Tensor EndPosition(const at::Tensor& ids) const;

  ClipConfig config_;
  at::Tensor tokens_;     // [vocabulary, width]
  at::Tensor positions_;  // [positions, width]
  std::vector<Layer> layers_;
  Norm final_norm_;
  std::optional<Linear> projection_;
};

}  // namespace tessera::models
