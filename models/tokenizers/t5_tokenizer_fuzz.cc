// Encodes arbitrary bytes as a prompt, and parses them as a sentencepiece model that then encodes a text.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "models/tokenizers/t5_tokenizer.h"
#include "models/tokenizers/unigram_encoder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tessera::models::T5Tokenizer;
  static const absl::StatusOr<T5Tokenizer> tokenizers[] = {
      T5Tokenizer::Load("tests/golden/pipelines/pixart_alpha/tokenizer"),
      T5Tokenizer::Load("tests/golden/pipelines/hunyuan11/tokenizer_2")};
  constexpr int64_t kMaxLength = 16;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const absl::StatusOr<T5Tokenizer>& tokenizer : tokenizers) {
    if (!tokenizer.ok()) std::abort();
    const absl::StatusOr<tessera::models::TokenIds> tokens = tokenizer->Encode(text, kMaxLength);
    if (!tokens.ok()) continue;
    if (tokens->ids.empty() || tokens->ids.back() != tokenizer->end_id()) std::abort();
    if (static_cast<int64_t>(tokens->ids.size()) != std::min(tokens->tokens_before_truncation, kMaxLength))
      std::abort();
    for (const int64_t id : tokens->ids) {
      if (id < 0 || id >= tokenizer->vocabulary_size()) std::abort();
    }
  }
  const absl::StatusOr<tessera::models::SentencePieceModel> model =
      tessera::models::SentencePieceModel::Parse(text, "fuzz");
  if (model.ok()) tessera::models::EncodeUnigram(*model, "a ｐhoto  of");
  return 0;
}
