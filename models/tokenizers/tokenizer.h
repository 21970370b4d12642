// What every tokenizer does: a text becomes the ids of its tokens, framed, cut to a length, and never padded.
// Encode may be called from any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

struct TokenIds {
  std::vector<int64_t> ids;  // the start token if the tokenizer has one, the text, the end token; not padded
  int64_t tokens_before_truncation = 0;  // start and end included
  bool truncated = false;
  std::string cut_text;  // the part of the text that was cut off; empty if none was
};

struct PieceId {
  int64_t id;
  size_t begin;  // offset in the original of the text it stands for
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // A text that is too long loses tokens at its end; start and end token stay. A character of which some bytes were
  // kept and some cut off counts as cut off. Time is about linear in the text.
  // InvalidArgument, naming `field`: invalid UTF-8, a NUL character, no room for start and end token.
  absl::StatusOr<TokenIds> Encode(std::string_view utf8, int64_t max_length, const std::string& field = "prompt") const;

  int64_t pad_id() const { return pad_id_; }
  int64_t end_id() const { return end_id_; }
  // Ids are below this, those of added tokens included. Embeddings may have more rows.
  int64_t vocabulary_size() const { return vocabulary_size_; }
  // As the files say it; the largest int64_t where they set no bound.
  int64_t model_max_length() const { return model_max_length_; }

  // From now on characters that the vocabulary cannot spell are the unknown token, also where it has bytes to spell
  // them with. Before the first Encode.
  virtual void UseUnknownToken() {}

 protected:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = default;
  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(const Tokenizer&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;

  std::optional<int64_t> start_id_;
  int64_t end_id_ = 0;
  int64_t pad_id_ = 0;
  int64_t vocabulary_size_ = 0;
  int64_t model_max_length_ = std::numeric_limits<int64_t>::max();

 private:
  // The tokens of well-formed UTF-8 without NUL, without start and end token.
  virtual std::vector<PieceId> Split(std::string_view utf8) const = 0;
};

// The tokenizer of a component's folder, by the class that model_index.json names. InvalidArgument: an unknown class
// (the error lists the known ones), bad files.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(std::string_view class_name, const std::string& folder);

}  // namespace tessera
