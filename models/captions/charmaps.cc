#include "models/captions/charmaps.h"

#include <algorithm>
#include <iterator>

namespace tessera::models::caption {
namespace {

constexpr char32_t kReplacement = 0xFFFD;
constexpr char32_t kSubstitute = 0x1A;

constexpr std::array<char16_t, 128> kTables[] = {
#include "models/captions/charmaps.inc"
};

constexpr std::array<char16_t, 128> Latin1() {
  std::array<char16_t, 128> table{};
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<char16_t>(0x80 + i);
  return table;
}

}  // namespace

const std::vector<Charmap>& Charmap::All() {
  // Windows 1252, 1251, 1250, 1253, 1254, 1257, then ISO 8859-2, Mac Roman, code page 437.
  static const std::vector<Charmap> all = [] {
    constexpr Kind kKinds[] = {Kind::kWindows, Kind::kWindows, Kind::kWindows,  Kind::kWindows, Kind::kWindows,
                               Kind::kWindows, Kind::kOther,   Kind::kMacRoman, Kind::kOther};
    static_assert(std::size(kKinds) == std::size(kTables));
    std::vector<Charmap> maps = {Charmap(Kind::kLatin1, Latin1())};
    for (size_t i = 0; i < std::size(kTables); ++i) maps.push_back(Charmap(kKinds[i], kTables[i]));
    return maps;
  }();
  return all;
}

Charmap::Charmap(Kind kind, const std::array<char16_t, 128>& high) : kind_(kind), high_(high) {
  for (size_t i = 0; i < high.size(); ++i) bytes_.emplace_back(high[i], static_cast<unsigned char>(0x80 + i));
  std::sort(bytes_.begin(), bytes_.end());
}

std::optional<std::u32string> Charmap::Encode(std::u32string_view text) const {
  std::u32string result;
  for (const char32_t c : text) {
    if (is_windows() && c == kReplacement) {
      result += kSubstitute;
    } else if (c < 0x80) {
      if (is_windows() && c == kSubstitute) return std::nullopt;
      result += c;
    } else {
      const auto found = std::lower_bound(bytes_.begin(), bytes_.end(), std::pair(c, static_cast<unsigned char>(0)));
      if (found == bytes_.end() || found->first != c) return std::nullopt;
      result += found->second;
    }
  }
  return result;
}

}  // namespace tessera::models::caption
