// LinearRegex is a regular expression whose search takes time linear in the text, for any text (a Pike virtual
// machine).
//
// It finds the leftmost match, with alternatives and greedy repetitions in order of preference: the match that a
// backtracking engine such as Python's re finds. Syntax: literals; . [...] [^...] \d \D \s \S \w \W with Python's
// Unicode meaning; \b ^ $; (...) and (?:...), neither of them capturing; | * + ? {n} {n,} {n,m}, all greedy; (?!c) with
// one character or class. A backslash makes any other character literal and is required for a - within brackets. A
// pattern is part of the program, so an invalid one aborts in the constructor. Immutable and thread-safe afterwards.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::models::caption {

class LinearRegex {
 public:
  explicit LinearRegex(std::u32string_view pattern);

  // Returns the begin and end of the first match that begins at `from` or later. `^` and \b refer to the whole text.
  std::optional<std::pair<size_t, size_t>> Find(std::u32string_view text, size_t from = 0) const;

  // Replaces all matches from left to right by a literal text, or by the result of `replace` for each match. A pattern
  // cannot match the empty text.
  std::u32string ReplaceAll(std::u32string_view text, std::u32string_view replacement) const;
  std::u32string ReplaceEach(std::u32string_view text,
                             const std::function<std::u32string(std::u32string_view)>& replace) const;

 private:
  friend class RegexCompiler;
  friend class RegexThreads;
  friend class RegexSearch;

  struct CharSet {
    // Latin-1 characters are looked up in a table that Tabulate fills.
    bool Contains(char32_t c) const { return c < latin1.size() ? latin1[c] : Holds(c); }
    bool Holds(char32_t c) const;
    void Tabulate();

    std::array<bool, 256> latin1{};
    bool negated = false;
    bool space = false, not_space = false, digit = false, not_digit = false, word = false, not_word = false;
    std::vector<std::pair<char32_t, char32_t>> ranges;
  };
  enum class Op { kSet, kSplit, kJump, kWordBoundary, kBegin, kEnd, kNotAhead, kMatch };
  struct Instruction {
    Op op;
    int32_t first = 0;   // kSplit: preferred target; kJump: target; kSet, kNotAhead: index of the set
    int32_t second = 0;  // kSplit: other target
  };

  std::vector<Instruction> program_;
  std::vector<CharSet> sets_;
  std::vector<CharSet> first_sets_;  // every match begins with a character of one of these; all non-negated sets are
                                     // merged into one
};

}  // namespace tessera::models::caption
