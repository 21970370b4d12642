// Reads the tokenizer that a file of weights holds: in the metadata of a GGUF file (keys "tokenizer.ggml."), or as
// Mistral's tekken.json in the tensor "tekken_model" of ComfyUI's safetensors. Both become the files of a tokenizer of
// the tokenizers library, which JsonTokenizer reads. LibTorch-free.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "models/tokenizers/json_tokenizer.h"

namespace tessera::models {

// What GGUF files state about a tokenizer.
struct GgufVocabulary {
  std::string model;                // "gpt2": byte-level BPE; "t5": unigram
  std::string pre;                  // how texts are cut: "qwen2", "tekken"
  std::vector<std::string> tokens;  // by id
  std::vector<int64_t> types;       // of each token: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused
  std::vector<std::string> merges;  // "a b", in their order
  std::vector<double> scores;       // of each token of a unigram model
  std::string characters;           // of a unigram model: the bytes of its normalizer (precompiled_charsmap)
  int64_t begin = -1, end = -1, unknown = -1, padding = -1;  // ids; -1: none
  bool adds_begin = false;
};

// Returns the files of the tokenizer. InvalidArgument if lists disagree or an id is outside the vocabulary;
// Unimplemented, naming it, for a model or a way of cutting that is not known.
absl::StatusOr<JsonTokenizerFiles> TokenizerOfGguf(const GgufVocabulary& vocabulary);

// The same for the text of a tekken.json (mistral-common). A token's rank is its number after the special tokens; the
// merges follow from the ranks.
absl::StatusOr<JsonTokenizerFiles> TokenizerOfTekken(std::string_view json);

// Reads the file and returns its tokenizer. NotFound if it holds none.
absl::StatusOr<JsonTokenizerFiles> ReadStoredTokenizer(const std::string& path);

}  // namespace tessera::models
