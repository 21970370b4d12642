#include "control/training/target_modules.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/text/nearest_name.h"

namespace tessera::control {
namespace {

bool IsPattern(std::string_view target) { return target.find_first_of("*?") != std::string_view::npos; }

// Whether the pattern matches the whole text. After a mismatch, only the last "*" can stand for more characters.
bool Matches(std::string_view text, std::string_view pattern) {
  size_t at = 0, in_pattern = 0, star = std::string_view::npos, from = 0;
  while (at < text.size()) {
    if (in_pattern < pattern.size() && pattern[in_pattern] == '*') {
      star = in_pattern++;
      from = at;
    } else if (in_pattern < pattern.size() && (pattern[in_pattern] == '?' || pattern[in_pattern] == text[at])) {
      ++in_pattern;
      ++at;
    } else if (star != std::string_view::npos) {
      in_pattern = star + 1;
      at = ++from;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', in_pattern) == std::string_view::npos;
}

// Adds the module's name with "*" for numbers, its ends, and both as patterns for all modules of the same parent.
void AddNames(const std::string& module, std::set<std::string>& names) {
  std::vector<std::string> parts = absl::StrSplit(module, '.');
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    if (std::ranges::all_of(parts[i], [](unsigned char c) { return std::isdigit(c) != 0; })) parts[i] = "*";
  }
  for (auto begin = parts.begin(); begin != parts.end(); ++begin) {
    if (*begin == "*") continue;
    names.insert(absl::StrJoin(begin, parts.end(), "."));
    if (parts.end() - begin > 1) names.insert(absl::StrCat(absl::StrJoin(begin, parts.end() - 1, "."), ".*"));
  }
}

}  // namespace

bool IsTarget(std::string_view module, std::string_view target) {
  if (target == kAllLinear) return true;
  for (size_t begin = 0;; ++begin) {
    const std::string_view end = module.substr(begin);
    if (IsPattern(target) ? Matches(end, target) : end == target) return true;
    begin = module.find('.', begin);
    if (begin == std::string_view::npos) return false;
  }
}

bool IsTargetOfAny(std::string_view module, std::span<const std::string> targets) {
  return std::ranges::any_of(targets, [module](const std::string& target) { return IsTarget(module, target); });
}

absl::Status CheckTargets(std::span<const std::string> targets, std::span<const std::string> modules) {
  for (const std::string& target : targets) {
    if (std::ranges::any_of(modules, [&](const std::string& module) { return IsTarget(module, target); })) continue;
    std::set<std::string> names = {kAllLinear};
    for (const std::string& module : modules) AddNames(module, names);
    const std::string nearest = base::NearestName(target, std::vector<std::string>(names.begin(), names.end()));
    return absl::InvalidArgumentError(absl::StrCat(
        "network.target_modules has \"", target, "\", ",
        IsPattern(target) ? "which matches no module of the model" : "with which no module of the model ends",
        nearest.empty() ? "" : absl::StrCat("; the nearest is \"", nearest, "\"")));
  }
  return absl::OkStatus();
}

}  // namespace tessera::control
