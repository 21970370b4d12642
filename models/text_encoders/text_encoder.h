// TextEncoder is the interface of a text encoder: it maps token ids to hidden states and, for some encoders, one pooled
// vector.
//
// Shapes: b batch, t tokens.
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "models/loading/param_table.h"
#include "models/text_encoders/text_encoder_config.h"
#include "parallel/forward_context.h"

namespace tessera::models {

struct TextEncoderInput {
  at::Tensor ids;              // [b, t] int64, each less than the size of the vocabulary
  at::Tensor mask;             // [b, t], 1 for tokens and 0 for padding; undefined if padding is read like text
  int64_t layers_skipped = 0;  // CLIP: number of last layers to skip, together with the final norm; 0 skips neither
};

struct EncodedTokens {
  at::Tensor hidden;  // [b, t, width]
  at::Tensor pooled;  // [b, pooled width]; undefined for encoders without one
};

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  virtual EncodedTokens Forward(const TextEncoderInput& input, const parallel::ForwardContext& context) const = 0;
};

// Adds the encoder's parameters to `table`. Their values are loaded afterwards.
std::unique_ptr<TextEncoder> MakeTextEncoder(const TextEncoderConfig& config, ParamTable& table);

// softmax(q kᵀ · scale + bias) v, with the scores in max(fp32, dtype). q, k, v [b, t, h·d] with heads of head_dim; bias
// broadcasts to [b, h, t, t], undefined for none. Returns [b, t, h·d].
at::Tensor TextAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t head_dim,
                         const at::Tensor& bias, double scale);

// Returns the bias [b, 1, 1, t] that excludes padding: 0 for tokens, the lowest number of `dtype` for padding. mask [b,
// t].
at::Tensor PaddingBias(const at::Tensor& mask, at::ScalarType dtype);

}  // namespace tessera::models
