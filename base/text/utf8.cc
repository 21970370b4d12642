#include "base/text/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/strings/ascii.h"

namespace tessera::base {

size_t Utf8SequenceLength(absl::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Rejects overlong forms, surrogates, and code points above U+10FFFF.
  if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) > 0x9F)) return 0;
  if ((first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) > 0x8F)) return 0;
  return length;
}

size_t FirstInvalidUtf8(absl::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    // Most text is ASCII: check eight bytes at once.
    if (uint64_t word; text.size() - at >= sizeof(word)) {
      std::memcpy(&word, text.data() + at, sizeof(word));
      if ((word & 0x8080808080808080) == 0) {
        at += sizeof(word);
        continue;
      }
    }
    const size_t length = Utf8SequenceLength(text.substr(at));
    if (length == 0) break;
    at += length;
  }
  return at;
}

std::string ReplaceInvalidUtf8(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t valid = FirstInvalidUtf8(text);
    out += std::string(text.substr(0, valid));
    text.remove_prefix(valid);
    if (!text.empty()) {
      out += '?';
      text.remove_prefix(1);
    }
  }
  return out;
}

std::string ReplaceControlCharacters(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); }, '?');
  return text;
}

}  // namespace tessera::base
