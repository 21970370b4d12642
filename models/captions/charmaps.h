// Charmap is a single-byte encoding that UTF-8 is commonly misread as. Immutable and thread-safe.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::models::caption {

class Charmap {
 public:
  // Returns the encodings in the order in which they are tried.
  static const std::vector<Charmap>& All();

  // Returns the bytes, each as a code point below 256, or nothing if the text could not have been read in this
  // encoding. In a lossy encoding U+FFFD stands for an unknown byte, which becomes 1A; U+001A itself has no byte in
  // that case.
  std::optional<std::u32string> Encode(std::u32string_view text) const;
  char32_t Decode(unsigned char byte) const { return byte < 0x80 ? byte : high_[byte - 0x80]; }

  bool is_latin1() const { return kind_ == Kind::kLatin1; }
  bool is_mac_roman() const { return kind_ == Kind::kMacRoman; }
  bool is_windows() const {
    return kind_ == Kind::kWindows;
  }  // lossy; a byte without a character becomes the code
     // point of the same number

 private:
  enum class Kind { kLatin1, kWindows, kMacRoman, kOther };

  Charmap(Kind kind, const std::array<char16_t, 128>& high);

  Kind kind_;
  std::array<char16_t, 128> high_;
  std::vector<std::pair<char32_t, unsigned char>> bytes_;  // sorted
};

}  // namespace tessera::models::caption
