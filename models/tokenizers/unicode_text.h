// Processes Unicode text and tracks the offset in the original that each character stems from.
//
// Canonical normalization is implemented here with ICU's data of single characters, because the origins are needed and
// because ICU sorts long runs of combining marks in quadratic time. Pure and thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace tessera::models {

// Returns InvalidArgument, naming `field` and the byte, for invalid UTF-8 or a NUL character.
absl::Status CheckText(std::string_view utf8, const std::string& field);

struct TracedChar {
  char32_t code;
  size_t origin;  // offset in the original
};

// `utf8` is well-formed; its first byte has the offset `origin`.
std::vector<TracedChar> TraceText(std::string_view utf8, size_t origin);

enum class Decomposition { kCanonical, kCompatibility };
// Returns the canonical (NFD) or compatibility (NFKD) decomposition.
std::vector<TracedChar> Decompose(const std::vector<TracedChar>& text, Decomposition kind = Decomposition::kCanonical);
// Returns the canonical composition (NFC) of decomposed text.
std::vector<TracedChar> Compose(std::vector<TracedChar> text);
// Lowers every character separately: a sigma at the end of a word is treated like any other.
std::vector<TracedChar> LowerCase(const std::vector<TracedChar>& text);

bool IsWhiteSpace(char32_t code);

// Normalized text as UTF-8.
struct NormalizedText {
  std::string text;
  std::vector<size_t> origins;  // for every byte of `text`, the offset in the original that it stems from

  void Append(TracedChar c);
};

}  // namespace tessera::models
