// EmbeddingEncoder is the smallest text encoder: a token's state is its embedding.
#include "models/text_encoders/text_encoder.h"

namespace tessera::models {
namespace {

class EmbeddingEncoder final : public TextEncoder {
 public:
  EmbeddingEncoder(int64_t vocabulary, int64_t width, ParamTable& table)
      : tokens_(table.Add({.name = "embed_tokens.weight", .shape = {vocabulary, width}})) {}

  EncodedTokens Forward(const TextEncoderInput& input, const parallel::ForwardContext&) const override {
    const BroughtPart frame(input.weights, WeightResidency::kFrame);
    SelectedStates states(input.states, /*layers=*/0);
    states.Add(0, at::embedding(tokens_, input.ids));
    return {.hidden = states.Joined()};
  }

 private:
  at::Tensor tokens_;  // [vocabulary, width]
};

}  // namespace

TextEncoderConfig ReadEmbeddingEncoder(base::ConfigReader& reader) {
  const int64_t vocabulary = reader.Int("vocab_size", 256, 1, 10'000'000);
  const int64_t width = reader.Int("hidden_size", 64, 1, 65536);
  return {.vocabulary = vocabulary, .width = width, .make = [vocabulary, width](ParamTable& table) {
            return std::make_unique<EmbeddingEncoder>(vocabulary, width, table);
          }};
}

}  // namespace tessera::models
