// BertEncoder implements BERT's encoder (Devlin et al., 2019): learned positions, LayerNorm after each part, exact
// GELU. The text is one segment.
#pragma once

#include <vector>

#include "models/layers/linear.h"
#include "models/text_encoders/text_encoder.h"

namespace tessera::models {

class BertEncoder final : public TextEncoder {
 public:
  BertEncoder(const BertConfig& config, ParamTable& table);

  EncodedTokens Forward(const TextEncoderInput& input, const parallel::ForwardContext& context) const override;

 private:
  struct Norm {
    Norm(const ParamScope& scope, int64_t width);
    at::Tensor weight, bias;  // [width]
  };
  struct Layer {
    Layer(const ParamScope& scope, const BertConfig& config);
    Linear qkv, out;
    Norm attention_norm;
    Linear mlp_in, mlp_out;
    Norm mlp_norm;
  };

  at::Tensor Normalise(const at::Tensor& x, const Norm& norm) const;

  BertConfig config_;
  at::Tensor words_;      // [vocabulary, width]
  at::Tensor positions_;  // [positions, width]
  at::Tensor types_;      // [token types, width]
  Norm embedding_norm_;
  std::vector<Layer> layers_;
};

}  // namespace tessera::models
