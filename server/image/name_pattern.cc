#include "server/image/name_pattern.h"

#include <sys/stat.h>
#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <filesystem>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::server {
namespace {

constexpr int32_t kMaxSlugBytes = 60;
constexpr size_t kMaxNameBytes = 255;
constexpr char kEmptySlug[] = "image";
constexpr char kValidFields[] = "{index}, {seed}, {prompt}, {width}, {height}, {model} and {steps}";

std::optional<std::string> FieldValue(std::string_view field, const NameValues& values) {
  if (field == "index") return absl::StrCat(values.index);
  if (field == "seed") return absl::StrCat(values.seed);
  if (field == "prompt") return Slug(values.prompt);
  if (field == "width") return absl::StrCat(values.width);
  if (field == "height") return absl::StrCat(values.height);
  if (field == "model") return Slug(values.model);
  if (field == "steps") return absl::StrCat(values.steps);
  return std::nullopt;
}

absl::Status PatternError(std::string_view pattern, const std::string& reason) {
  return absl::InvalidArgumentError(absl::StrCat("output name \"", std::string(pattern), "\": ", reason));
}

icu::UnicodeString LowerCaseComposed(std::string_view text) {
  icu::UnicodeString lower = icu::UnicodeString::fromUTF8({text.data(), static_cast<int32_t>(text.size())});
  lower.toLower(icu::Locale::getRoot());
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* composer = icu::Normalizer2::getNFCInstance(error);
  if (U_FAILURE(error)) return lower;
  icu::UnicodeString composed = composer->normalize(lower, error);
  return U_FAILURE(error) ? lower : composed;
}

bool IsMark(UChar32 character) { return (U_GET_GC_MASK(character) & U_GC_M_MASK) != 0; }

}  // namespace

absl::StatusOr<std::string> ExpandPattern(std::string_view pattern, const NameValues& values) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\0') return PatternError(pattern.substr(0, i), "it contains a NUL character");
    if (c != '{' && c != '}') {
      out.push_back(c);
      continue;
    }
    if (i + 1 < pattern.size() && pattern[i + 1] == c) {
      out.push_back(c);
      ++i;
      continue;
    }
    const size_t end = pattern.find('}', i);
    if (c == '}' || end == std::string_view::npos) {
      return PatternError(pattern, absl::StrCat("a lone \"", std::string(1, c), "\"; write it twice to mean itself"));
    }
    const std::string_view field = pattern.substr(i + 1, end - i - 1);
    const std::optional<std::string> value = FieldValue(field, values);
    if (!value) {
      return PatternError(pattern,
                          absl::StrCat("unknown field {", std::string(field), "}; valid values are ", kValidFields));
    }
    out.append(*value);
    i = end;
  }
  const std::string name = out.substr(out.find_last_of('/') + 1);
  if (name.empty() || name == "." || name == "..") return PatternError(pattern, "it names no file");
  if (name.size() > kMaxNameBytes) {
    return PatternError(pattern, absl::StrCat("the file name becomes ", name.size(), " bytes long; at most ",
                                              kMaxNameBytes, " are valid"));
  }
  return out;
}

std::string Slug(std::string_view text) {
  // Far more than the slug can use; lower-casing and composition must not process a prompt of any length.
  constexpr size_t kConsideredBytes = 4096;
  const icu::UnicodeString source = LowerCaseComposed(text.substr(0, kConsideredBytes));
  std::string slug;
  bool separate = false;
  for (int32_t i = 0; i < source.length(); i = source.moveIndex32(i, 1)) {
    const UChar32 character = source.char32At(i);
    if (u_charType(character) == U_FORMAT_CHAR) continue;
    const bool continues = IsMark(character) && !separate && !slug.empty();
    if (!u_isalnum(character) && !continues) {
      separate = !slug.empty();
      continue;
    }
    std::string piece = separate ? "-" : "";
    icu::UnicodeString(character).toUTF8String(piece);
    if (slug.size() + piece.size() > kMaxSlugBytes) break;
    slug.append(piece);
    separate = false;
  }
  return slug.empty() ? kEmptySlug : slug;
}

std::string NextFreeName(const std::string& path) {
  struct stat existing;
  if (::lstat(path.c_str(), &existing) != 0) return path;
  const std::filesystem::path whole(path);
  const std::string extension = whole.extension().string();
  const std::string stem = path.substr(0, path.size() - extension.size());
  for (uint64_t number = 2;; ++number) {
    std::string candidate = absl::StrCat(stem, "-", number, extension);
    if (::lstat(candidate.c_str(), &existing) != 0) return candidate;
  }
}

}  // namespace tessera::server
