// TextPlan states how a family puts prompts to a text encoder and which hidden states it reads. LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/tokenizers/tokenizer.h"

namespace tessera::models {

// How a text is padded to its maximum length.
enum class TextPadding {
  kNone,      // no padding: the states of real tokens do not depend on masked padding
  kMasked,    // to the maximum length, masked
  kAttended,  // to the maximum length, read like text
};

enum class PaddingSide { kRight, kLeft };

struct TextPlan {
  // The template: the tokens are those of before + prompt + after, as one text.
  std::string before = "", after = "";
  bool has_frame = false;  // the template has the tokenizer's start and end tokens, so that none are added
  // After the first `kept` tokens, the states of `dropped` tokens are not returned. They are those of the template, and
  // the maximum length of a text does not count them.
  int64_t kept = 0, dropped = 0;
  TextPadding padding = TextPadding::kNone;
  std::optional<PaddingSide> side = std::nullopt;  // the tokenizer's if not set
  std::vector<int64_t> states = {-1};              // see TextEncoderInput

  // Returns a text that differs between plans that differ.
  std::string Key() const;
};

// The name of the token that stands for a picture in a text, before it is repeated for each unit of the picture.
inline constexpr char kPictureToken[] = "<|image_pad|>";

// A prompt as an encoder reads it.
struct PlannedText {
  std::vector<int64_t> ids;
  std::vector<int64_t> mask;  // 1 for tokens and 0 for padding
  int64_t tokens = 0;         // without padding and dropped tokens
  int64_t dropped_from = 0;   // index of the first dropped token
  std::vector<std::string> warnings;
};

// Encodes a prompt to at most max_length + plan.dropped tokens. `field` is its name in the request and `encoder` the
// component that reads it, for messages. Returns the errors of Tokenizer::Encode, and InvalidArgument for a text that
// has fewer tokens than the plan keeps and drops.
absl::StatusOr<PlannedText> PlanText(const Tokenizer& tokenizer, const TextPlan& plan, const std::string& prompt,
                                     int64_t max_length, const std::string& field, const std::string& encoder);

// Repeats each token `picture_id` of a text without padding as often as its picture has units. InvalidArgument if the
// text does not have one such token for each picture, because the prompt contains it too.
absl::Status InsertPictures(PlannedText& text, int64_t picture_id, std::span<const int64_t> units,
                            const std::string& field);

}  // namespace tessera::models
