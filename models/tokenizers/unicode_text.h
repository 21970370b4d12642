// Unicode text that remembers where in the original each of its characters stems from.
//
// Canonical normalization is done here, from ICU's data of single characters, because the origins are wanted and
// because ICU sorts long runs of combining marks in quadratic time. Pure and thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace tessera::models {

// InvalidArgument, naming `field` and the byte: invalid UTF-8, a NUL character.
absl::Status CheckText(std::string_view utf8, const std::string& field);

struct TracedChar {
  char32_t code;
  size_t origin;  // offset in the original
};

// `utf8` is well-formed; its first byte has the offset `origin`.
std::vector<TracedChar> TraceText(std::string_view utf8, size_t origin);

enum class Decomposition { kCanonical, kCompatibility };
// Canonical (NFD) or compatibility (NFKD) decomposition.
std::vector<TracedChar> Decompose(const std::vector<TracedChar>& text, Decomposition kind = Decomposition::kCanonical);
// Canonical composition of decomposed text (NFC).
std::vector<TracedChar> Compose(std::vector<TracedChar> text);
// Every character by itself: a sigma at the end of a word is like every other.
std::vector<TracedChar> LowerCase(const std::vector<TracedChar>& text);

bool IsWhiteSpace(char32_t code);

// Normalized text as UTF-8.
struct NormalizedText {
  std::string text;
  std::vector<size_t> origins;  // for every byte of `text`, the offset in the original that it stems from

  void Append(TracedChar c);
};

}  // namespace tessera::models
