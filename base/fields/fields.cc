#include "base/fields/fields.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/fields/field_error.h"
#include "base/fields/json_fields.h"
#include "base/files/sha256.h"
#include "base/text/number_text.h"
#include "base/text/utf8.h"

namespace tessera::base {
namespace {

std::string ProblemOfText(const std::string& text, size_t most_bytes) {
  if (text.size() <= most_bytes) return "";
  return absl::StrCat("has ", text.size(), " bytes; valid values are at most ", most_bytes);
}

template <class T>
std::string ProblemOfRange(T value, T low, T high) {
  return absl::StrCat("is ", value, "; valid values are ", low, " to ", high, ", the nearest is ",
                      std::clamp(value, low, high));
}

std::string ItemText(absl::string_view field, std::optional<size_t> item) {
  return item.has_value() ? absl::StrCat(field, "[", *item, "]") : std::string(field);
}

}  // namespace

std::string ProblemOfInteger(int64_t value, const Integer& valid) {
  if (value >= valid.low && (value < 0 || static_cast<uint64_t>(value) <= valid.high)) return "";
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return ProblemOfRange(value, valid.low, static_cast<int64_t>(std::min(valid.high, kMost)));
}

std::string ProblemOfInteger(uint64_t value, const Integer& valid) {
  if (value <= valid.high && (valid.low <= 0 || value >= static_cast<uint64_t>(valid.low))) return "";
  return ProblemOfRange(value, static_cast<uint64_t>(std::max<int64_t>(valid.low, 0)), valid.high);
}

std::string ProblemOf(double value, const Number& valid) {
  constexpr Number kAny;
  if (valid.low == kAny.low && valid.high == kAny.high) return "";
  if (value >= valid.low && value <= valid.high) return "";
  std::string problem = absl::StrCat("is ", NumberText(value), "; it must be a number from ", NumberText(valid.low),
                                     " to ", NumberText(valid.high));
  if (std::isnan(value)) return problem;
  return absl::StrCat(problem, ", the nearest is ", NumberText(std::clamp(value, valid.low, valid.high)));
}

std::string ProblemOf(const std::string& text, const Text& valid) {
  if (std::string problem = ProblemOfText(text, valid.most_bytes); !problem.empty()) return problem;
  if (const size_t nul = text.find('\0'); nul != std::string::npos) {
    return absl::StrCat("has a NUL byte at offset ", nul, "; it must be ", valid.is_path ? "a path" : "UTF-8 text",
                        " without NUL");
  }
  const size_t wrong = valid.is_path ? text.size() : FirstInvalidUtf8(text);
  if (wrong == text.size()) return "";
  return absl::StrCat("is not valid UTF-8: byte 0x", absl::Hex(static_cast<unsigned char>(text[wrong])), " at offset ",
                      wrong, "; it must be UTF-8 text");
}

std::string ProblemOf(const std::string& bytes, const Bytes& valid) { return ProblemOfText(bytes, valid.most_bytes); }

std::string ProblemOf(const std::string& digest, const Content&) {
  return IsSha256Text(digest) ? "" : absl::StrCat("is not ", 2 * kSha256Bytes, " hexadecimal digits");
}

std::string ProblemOfChoice(const std::vector<std::string>& names) {
  return absl::StrCat("is unknown; valid values are ", absl::StrJoin(names, ", "));
}

absl::Status ErrorWithin(absl::string_view field, std::optional<size_t> item, const absl::Status& inner) {
  const std::string path = ItemText(field, item);
  return ErrorOfField(field, absl::StrCat(path.substr(field.size()), ".", inner.message()));
}

absl::Status ErrorOfItem(absl::string_view field, std::optional<size_t> item, absl::string_view problem) {
  return ErrorOfField(field, absl::StrCat(ItemText(field, item).substr(field.size()), " ", problem));
}

absl::Status ErrorOfCount(absl::string_view field, size_t count, size_t most) {
  return ErrorOfField(field, absl::StrCat(" has ", count, " entries; valid values are at most ", most));
}

// Control characters, with DEL, have four digits: YAML's readers refuse some of them as they are.
std::string JsonFieldText(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') json += '\\';
    if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppend(&json, "\\u", absl::Hex(byte, absl::kZeroPad4));
    } else {
      json += c;
    }
  }
  return json + '"';
}

std::string ShortestDigits(double number) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof(digits), number).ptr};
}

}  // namespace tessera::base
