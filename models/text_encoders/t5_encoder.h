// T5Encoder implements the encoder of T5 v1.1 (Raffel et al., 2020): RMSNorm before each part, relative position bias
// shared by all blocks, gated GELU, no biases.
#pragma once

#include <vector>

#include "models/layers/linear.h"
#include "models/layers/token_embedding.h"
#include "models/text_encoders/text_encoder.h"

namespace tessera::models {

// Used by one thread.
class T5Encoder final : public TextEncoder {
 public:
  T5Encoder(const T5Config& config, ParamTable& table);

  EncodedTokens Forward(const TextEncoderInput& input, const parallel::ForwardContext& context) const override;

 private:
  struct Block {
    Block(const ParamScope& scope, const T5Config& config);
    at::Tensor attention_norm, mlp_norm;  // [d_model]
    Linear qkv, out, gate_and_value, mlp_out;
  };

  // Returns, on the host, the bucket of each distance from a query to a key, −tokens … tokens.
  at::Tensor BucketsOf(int64_t tokens) const;
  // Returns [1, h, t, t]: the bias of every pair of query and key positions.
  at::Tensor PositionBias(int64_t tokens) const;

  T5Config config_;
  TokenEmbedding embedding_;
  at::Tensor position_bias_;    // [buckets, h]
  mutable at::Tensor buckets_;  // BucketsOf the longest text so far, on the device of position_bias_
  std::vector<Block> blocks_;
  at::Tensor final_norm_;  // [d_model]
};

}  // namespace tessera::models
