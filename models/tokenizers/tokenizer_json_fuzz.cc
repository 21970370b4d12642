// Parses arbitrary bytes as tokenizer.json, for every class.
#include <cstdint>
#include <string>

#include "models/tokenizers/json_tokenizer.h"
#include "tests/support/fuzz_tokens.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tessera::models::TokenizerKind;
  const std::string bytes(data, data + size);
  for (const TokenizerKind kind :
       {TokenizerKind::kBert, TokenizerKind::kClip, TokenizerKind::kOther, TokenizerKind::kT5}) {
    const auto tokenizer =
        tessera::models::JsonTokenizer::Parse(kind, {.tokenizer_json = bytes, .tokenizer_config_json = "{}"}, "fuzz");
    if (tokenizer.ok())
      tessera::CheckTokens(*tokenizer, " A photo, of\u732B \u00E9e\u0301 it's<mark> 12\r\n\u2581aab!");
  }
  return 0;
}
