#include "base/text/nearest_name.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text/utf8.h"

namespace tessera::base {
namespace {

constexpr size_t kMaxTypedBytes = 60;   // the rest of a name is not compared
constexpr size_t kMaxQuotedBytes = 60;  // the rest of a value is not shown
constexpr size_t kMaxNamesFirst = 12;   // the nearest name is shown before a longer list

// Returns the number of insertions, deletions, substitutions and swaps of neighbours from `a` to `b` (optimal string
// alignment).
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string NearestName(absl::string_view typed, absl::Span<const std::string> names) {
  const std::string spelt = absl::AsciiStrToLower(typed.substr(0, kMaxTypedBytes));
  std::string nearest;
  size_t least = std::numeric_limits<size_t>::max();
  size_t most_in_front = 0;
  for (const std::string& name : names) {
    const std::string lower = absl::AsciiStrToLower(name);
    const size_t distance = EditDistance(spelt, lower);
    const size_t in_front = std::mismatch(spelt.begin(), spelt.end(), lower.begin(), lower.end()).first - spelt.begin();
    // If more than half of the letters differ, it is another word.
    if (distance * 2 > std::max(name.size(), spelt.size())) continue;
    if (distance < least || (distance == least && in_front > most_in_front)) {
      least = distance;
      most_in_front = in_front;
      nearest = name;
    }
  }
  return nearest;
}

std::string QuotedValue(absl::string_view value) {
  const std::string shown = ReplaceControlCharacters(ReplaceInvalidUtf8(value.substr(0, kMaxQuotedBytes)));
  return absl::StrCat("'", shown, value.size() > kMaxQuotedBytes ? "…'" : "'");
}

std::string ProblemOfName(absl::string_view value, absl::Span<const std::string> valid) {
  if (std::find(valid.begin(), valid.end(), value) != valid.end()) return "";
  return UnknownName(value, valid, NearestName(value, valid));
}

std::string UnknownName(absl::string_view value, absl::Span<const std::string> valid, absl::string_view nearest) {
  const std::string list = absl::StrCat("valid values are ", absl::StrJoin(valid, ", "));
  const std::string question = absl::StrCat("did you mean '", nearest, "'?");
  const std::string unknown = absl::StrCat(" ", QuotedValue(value), " is unknown; ");
  if (nearest.empty()) return absl::StrCat(unknown, list);
  if (valid.size() > kMaxNamesFirst) return absl::StrCat(unknown, question, " ", list);
  return absl::StrCat(unknown, list, "; ", question);
}

}  // namespace tessera::base
