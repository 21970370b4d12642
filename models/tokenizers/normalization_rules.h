// NormalizationRules holds Sentencepiece's normalization of text: rules in a trie, and the treatment of white space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::models {

struct NormalizationRules {
  std::vector<uint32_t> trie;  // double array of Darts-clone; the values are positions in `replacements`
  std::string replacements;    // each ends with a zero byte
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;

  // Takes the trie and the replacements from a precompiled_charsmap: the trie's length in bytes, the trie, the
  // replacements. Returns false if it is damaged.
  [[nodiscard]] bool ReadCharsMap(std::string_view bytes);

  struct Match {
    size_t length = 0;  // of the replaced text; 0 if no rule matches
    std::string_view replacement;
  };
  // Return the longest or the shortest rule that matches the beginning of the text.
  Match Longest(std::string_view text) const { return Find(text, /*shortest=*/false); }
  Match Shortest(std::string_view text) const { return Find(text, /*shortest=*/true); }

 private:
  Match Find(std::string_view text, bool shortest) const;
};

}  // namespace tessera::models
