// Parses arbitrary bytes as CLIP's vocab.json.
#include <cstdint>
#include <string>

#include "models/tokenizers/clip_tokenizer.h"
#include "tests/support/fuzz_tokens.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tokenizer = tessera::models::ClipTokenizer::Parse({.vocab_json = std::string(data, data + size),
                                                                .merges_txt = "#version: 0.2\na b\nab a</w>\n",
                                                                .tokenizer_config_json = "{}"},
                                                               "fuzz");
  if (tokenizer.ok()) tessera::CheckTokens(*tokenizer, "aba a! \u732B<|endoftext|>bab");
  return 0;
}
