#include "models/tokenizers/normalization_rules.h"

#include <bit>
#include <cstring>

namespace tessera::models {

static_assert(std::endian::native == std::endian::little);

bool NormalizationRules::ReadCharsMap(std::string_view bytes) {
  if (bytes.empty()) return true;
  uint32_t trie_bytes;
  if (bytes.size() < sizeof(trie_bytes)) return false;
  std::memcpy(&trie_bytes, bytes.data(), sizeof(trie_bytes));
  bytes.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes >= bytes.size() || trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0) return false;
  trie.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(trie.data(), bytes.data(), trie_bytes);
  replacements = bytes.substr(trie_bytes);
  return replacements.back() == '\0';
}

// Positions outside the arrays, which occur only in a damaged file, end the search.
NormalizationRules::Match NormalizationRules::Find(std::string_view text, bool shortest) const {
  Match found;
  if (trie.empty()) return found;
  const auto offset = [](uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); };
  uint32_t position = offset(trie[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    position ^= byte;
    if (position >= trie.size()) break;
    const uint32_t unit = trie[position];
    if ((unit & ((1u << 31) | 0xFF)) != byte) break;
    position ^= offset(unit);
    if (position >= trie.size()) break;
    const bool has_value = ((unit >> 8) & 1) != 0;
    const uint32_t value = trie[position] & ~(1u << 31);
    if (!has_value || value >= replacements.size()) continue;
    found = {i + 1, std::string_view(replacements.c_str() + value)};
    if (shortest) break;
  }
  return found;
}

}  // namespace tessera::models
