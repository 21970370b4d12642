// Parses arbitrary bytes as tokenizer_config.json and as special_tokens_map.json.
#include <cstdint>
#include <string>

#include "models/tokenizers/bert_tokenizer.h"
#include "models/tokenizers/clip_tokenizer.h"
#include "tests/support/fuzz_tokens.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(data, data + size);
  const std::string text = " [SEP]  a !\u732B<|ENDOFTEXT|> <|endoftext|>[MASK]x ";
  for (const bool as_map : {false, true}) {
    const std::string config = as_map ? "{}" : bytes;
    const std::optional<std::string> map = as_map ? std::make_optional(bytes) : std::nullopt;
    const auto clip = tessera::models::ClipTokenizer::Parse(
        {.vocab_json = R"({"!": 0, "a</w>": 1, "<|startoftext|>": 2, "<|endoftext|>": 3})",
         .tokenizer_config_json = config,
         .special_tokens_map_json = map},
        "fuzz");
    if (clip.ok()) tessera::CheckTokens(*clip, text);
    const auto bert = tessera::models::BertTokenizer::Parse({.vocab_txt = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n!\n",
                                                             .tokenizer_config_json = config,
                                                             .special_tokens_map_json = map},
                                                            "fuzz");
    if (bert.ok()) tessera::CheckTokens(*bert, text);
  }
  return 0;
}
