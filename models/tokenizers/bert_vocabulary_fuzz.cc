// Parses arbitrary bytes as BERT's vocab.txt, after the special tokens and in their place.
#include <cstdint>
#include <string>

#include "models/tokenizers/bert_tokenizer.h"
#include "tests/support/fuzz_tokens.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(data, data + size);
  for (const std::string& vocabulary : {bytes, "[PAD]\n[UNK]\n[CLS]\n[SEP]\n" + bytes}) {
    const auto tokenizer =
        tessera::models::BertTokenizer::Parse({.vocab_txt = vocabulary, .tokenizer_config_json = "{}"}, "fuzz");
    if (tokenizer.ok()) tessera::CheckTokens(*tokenizer, "a photo, of\u732B \u00E9[SEP]catcat");
  }
  return 0;
}
