// Parses arbitrary bytes as CLIP's merges.txt.
#include <cstdint>
#include <string>

#include "models/tokenizers/clip_tokenizer.h"
#include "tests/support/fuzz_tokens.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tokenizer = tessera::models::ClipTokenizer::Parse(
      {.vocab_json = R"({"a": 0, "b": 1, "a</w>": 2, "b</w>": 3, "ab": 4, "ba": 5, "ab</w>": 6, "aba": 7, "abab</w>": 8,
                         "aa": 9, "aaaa": 10, "<|startoftext|>": 11, "<|endoftext|>": 12})",
       .merges_txt = std::string(data, data + size),
       .tokenizer_config_json = "{}"},
      "fuzz");
  if (tokenizer.ok()) tessera::CheckTokens(*tokenizer, "ab aba abab aaaaaaaaa bbaabb!");
  return 0;
}
