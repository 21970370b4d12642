// What every tokenizer does: a text becomes the ids of its tokens, framed, cut to a length, and never padded.
// Which files are read and what of them is supported is in docs/tokenizers.md.
// Encode may be called from any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::models {

class TokenNames;

struct TokenIds {
  std::vector<int64_t> ids;              // the text between its start and end tokens, where it has them; not padded
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

  // A text that is too long loses tokens at its end, or at its beginning where the files say so; start and end tokens
  // stay. A character of which some bytes were kept and some cut off counts as cut off. Time is about linear in the
  // text. InvalidArgument, naming `field`: invalid UTF-8, a NUL character, no room for start and end tokens, a text on
  // which a pattern of the files takes too many steps.
  absl::StatusOr<TokenIds> Encode(std::string_view utf8, int64_t max_length, const std::string& field = "prompt") const;

  int64_t pad_id() const { return pad_id_; }                              // -1 if the files name none
  int64_t end_id() const { return after_.empty() ? -1 : after_.back(); }  // the last token of every text; -1 if none is
  bool pads_left() const { return pads_left_; }
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

  // What the files say of lengths: model_max_length, truncation_side, padding_side.
  void TakeLengths(TokenNames& names);

  std::vector<int64_t> before_, after_;  // start and end tokens
  int64_t pad_id_ = -1;
  int64_t vocabulary_size_ = 0;
  int64_t model_max_length_ = std::numeric_limits<int64_t>::max();
  bool pads_left_ = false, cuts_left_ = false;

 private:
  // The tokens of well-formed UTF-8 without NUL, without start and end tokens.
  virtual absl::StatusOr<std::vector<PieceId>> Split(std::string_view utf8) const = 0;
};

// The tokenizer of a component's folder, by the class that model_index.json names: its tokenizer.json where it has one,
// else the files of its class. InvalidArgument: an unknown class (the error lists the known ones), bad files.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(std::string_view class_name, const std::string& folder);

// The files of the folder that LoadTokenizer reads; none of an unknown class.
std::vector<std::string> TokenizerFiles(std::string_view class_name, const std::string& folder);

}  // namespace tessera::models
