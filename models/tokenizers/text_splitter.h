// TextSplitter is the pre-tokenizer of a tokenizer.json: a sequence of steps that each cut the pieces of a text into
// smaller ones and may rewrite them. Immutable; Run may be called from any number of threads.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "models/tokenizers/unicode_text.h"

namespace tessera::models {

// Consecutive pieces, none of them empty.
struct TextPieces {
  std::vector<TracedChar> text;
  std::vector<size_t> ends;

  void Append(std::span<const TracedChar> piece);
  // Returns piece i.
  std::span<const TracedChar> operator[](size_t i) const;
};

class TextSplitter {
 public:
  TextSplitter() = default;  // leaves everything in one piece

  // `json` may be null. Returns InvalidArgument, naming the part, for a type or an option that is not supported and for
  // invalid fields.
  static absl::StatusOr<TextSplitter> Read(const base::Json* json, const std::string& name);

  // Returns InvalidArgument if a pattern needs too many steps.
  absl::StatusOr<TextPieces> Run(std::vector<TracedChar> text) const;

 private:
  using Step = std::function<absl::StatusOr<TextPieces>(const TextPieces&)>;
  std::vector<Step> steps_;
};

}  // namespace tessera::models
