// Tokenizer turns a text into the ids of its tokens, with start and end tokens, truncated to a length, and never
// padded. docs/tokenizers.md lists which files are read and which of their features are supported. Encode may be called
// from any number of threads.
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
  std::vector<int64_t> ids;              // the text between its start and end tokens, if the tokenizer has them; not
                                         // padded
  int64_t tokens_before_truncation = 0;  // including start and end tokens
  bool truncated = false;
  std::string cut_text;  // the part of the text that was cut off; empty if none was
};

struct PieceId {
  int64_t id;
  size_t begin;  // offset in the original of the text that it stands for
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Encodes a text. A text that is too long loses tokens at its end, or at its beginning if the files say so; start and
  // end tokens are kept. A character of which only some bytes were kept counts as cut off. Time is about linear in the
  // text. Returns InvalidArgument, naming `field`, for invalid UTF-8, a NUL character, a `max_length` without space for
  // start and end tokens, and a text on which a pattern of the files takes too many steps.
  absl::StatusOr<TokenIds> Encode(std::string_view utf8, int64_t max_length, const std::string& field = "prompt") const;
  // Encodes a text that has its start and end tokens itself, as a chat template writes them; none are added.
  absl::StatusOr<TokenIds> EncodeBare(std::string_view utf8, int64_t max_length,
                                      const std::string& field = "prompt") const;

  int64_t pad_id() const { return pad_id_; }                              // -1 if the files name none
  int64_t end_id() const { return after_.empty() ? -1 : after_.back(); }  // last token of every text; -1 if none
  bool pads_left() const { return pads_left_; }
  // All ids are below this, including those of added tokens. Embeddings may have more rows.
  int64_t vocabulary_size() const { return vocabulary_size_; }
  // From the files; the largest int64_t if they set no bound.
  int64_t model_max_length() const { return model_max_length_; }

  // Makes characters that the vocabulary cannot spell the unknown token even if the vocabulary could spell them as
  // bytes. Must be called before the first Encode.
  virtual void UseUnknownToken() {}

 protected:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = default;
  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(const Tokenizer&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;

  // Reads model_max_length, truncation_side and padding_side.
  void TakeLengths(TokenNames& names);

  std::vector<int64_t> before_, after_;  // start and end tokens
  int64_t pad_id_ = -1;
  int64_t vocabulary_size_ = 0;
  int64_t model_max_length_ = std::numeric_limits<int64_t>::max();
  bool pads_left_ = false, cuts_left_ = false;

 private:
  // Returns the tokens of well-formed UTF-8 without NUL, excluding start and end tokens.
  virtual absl::StatusOr<std::vector<PieceId>> Split(std::string_view utf8) const = 0;
  absl::StatusOr<TokenIds> EncodeIn(const std::vector<int64_t>& before, const std::vector<int64_t>& after,
                                    std::string_view utf8, int64_t max_length, const std::string& field) const;
};

// Loads the tokenizer of a component's folder, by the class in model_index.json: from its tokenizer.json if it has one,
// otherwise from the files of its class. Returns InvalidArgument for an unknown class (the error lists the known ones)
// and for invalid files.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(std::string_view class_name, const std::string& folder);

// Returns the files of the folder that LoadTokenizer reads; empty for an unknown class.
std::vector<std::string> TokenizerFiles(std::string_view class_name, const std::string& folder);

}  // namespace tessera::models
