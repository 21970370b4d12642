// Parses arbitrary bytes as a tekken.json, and its lines as the tokens and merges of a GGUF file.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "models/tokenizers/stored_tokenizer.h"
#include "tests/support/fuzz_tokens.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera::models;
  const std::string bytes(data, data + size);
  const auto check = [](const absl::StatusOr<JsonTokenizerFiles>& files) {
    if (!files.ok()) return;
    const auto tokenizer = JsonTokenizer::Parse(TokenizerKind::kOther, *files, "fuzz");
    if (tokenizer.ok()) tessera::CheckTokens(*tokenizer, " A photo, of\u732B \u00E9e\u0301 it's 12\r\n!");
  };
  check(TokenizerOfTekken(bytes));
  // The first line chooses the kind; tokens begin with their type, merges contain a space.
  const std::vector<std::string> lines = absl::StrSplit(bytes, '\n');
  GgufVocabulary vocabulary{.model = lines[0] == "t5" ? "t5" : "gpt2", .pre = lines[0], .end = 0, .unknown = 0};
  for (size_t i = 1; i < lines.size(); ++i) {
    if (lines[i].find(' ') != std::string::npos) {
      vocabulary.merges.push_back(lines[i]);
    } else if (!lines[i].empty()) {
      vocabulary.types.push_back(lines[i][0] - '0');
      vocabulary.tokens.push_back(lines[i].substr(1));
      vocabulary.scores.push_back(-static_cast<double>(i));
    }
  }
  check(TokenizerOfGguf(vocabulary));
  return 0;
}
