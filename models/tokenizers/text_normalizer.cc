#include "models/tokenizers/text_normalizer.h"

#include <unicode/ubrk.h>
#include <unicode/uchar.h>
#include <unicode/utf16.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "models/tokenizers/byte_characters.h"
#include "models/tokenizers/normalization_rules.h"
#include "models/tokenizers/text_pattern.h"
#include "models/tokenizers/tokenizer_parts.h"

namespace tessera::models {
namespace {

using Text = std::vector<TracedChar>;
using Rewriting = std::function<absl::Status(Text&)>;

constexpr size_t kLongestContent = 1000;  // bytes that a step may replace a match by
constexpr size_t kMostGrowth = 64;        // characters that one character may become
constexpr size_t kFreeGrowth = 65536;     // characters that a text may grow by in addition
// Clusters of at least this many bytes are replaced character by character.
constexpr size_t kLongCluster = 6;

// Returns a step that cannot fail.
Rewriting Rewrite(Text (*rewrite)(const Text&)) {
  return [rewrite](Text& text) {
    text = rewrite(text);
    return absl::OkStatus();
  };
}

Text ToNfd(const Text& text) { return Decompose(text); }
Text ToNfc(const Text& text) { return Compose(Decompose(text)); }
Text ToNfkd(const Text& text) { return Decompose(text, Decomposition::kCompatibility); }
Text ToNfkc(const Text& text) { return Compose(Decompose(text, Decomposition::kCompatibility)); }

// Whether the character is a mark in the reference's table, which is that of Unicode 9.
bool IsMark(char32_t code) {
  constexpr uint8_t kUnicodeVersion = 9;
  if (code == 0x1CF2 || code == 0x1CF3) return true;  // letters since then
  if (code == 0x111C9) return false;                  // punctuation at that time
  if ((U_GET_GC_MASK(static_cast<UChar32>(code)) & U_GC_M_MASK) == 0) return false;
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(code), age);
  return age[0] <= kUnicodeVersion;
}

Text WithoutMarks(const Text& text) {
  Text result = text;
  std::erase_if(result, [](const TracedChar& c) { return IsMark(c.code); });
  return result;
}

// Applies Sentencepiece's white space rules for machine translation.
Text ToNmt(const Text& text) {
  Text result;
  result.reserve(text.size());
  for (TracedChar c : text) {
    const char32_t code = c.code;
    if ((code >= 0x01 && code <= 0x08) || code == 0x0B || (code >= 0x0E && code <= 0x1F) || code == 0x7F ||
        code == 0x8F || code == 0x9F) {
      continue;
    }
    constexpr char32_t kSpaces[] = {0x09, 0x0A, 0x0C, 0x0D, 0x1680, 0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD};
    if ((code >= 0x200B && code <= 0x200F) ||
        std::find(std::begin(kSpaces), std::end(kSpaces), code) != std::end(kSpaces)) {
      c.code = ' ';
    }
    result.push_back(c);
  }
  return result;
}

Text ToByteCharacters(const Text& text) {
  constexpr std::array<char32_t, 256> kCharacters = ByteCharacters();
  Text result;
  for (const TracedChar& c : text) {
    NormalizedText bytes;
    bytes.Append(c);
    for (const char byte : bytes.text) result.push_back({kCharacters[static_cast<unsigned char>(byte)], c.origin});
  }
  return result;
}

// Applies the rules of a precompiled_charsmap like the reference: in each grapheme cluster of less than six bytes, the
// shortest rule that matches its beginning replaces the whole cluster; otherwise the same is done for each character.
class CharsMap {
 public:
  explicit CharsMap(NormalizationRules rules) : rules_(std::move(rules)) {
    UErrorCode error = U_ZERO_ERROR;
    clusters_.reset(ubrk_open(UBRK_CHARACTER, "", nullptr, 0, &error), [](UBreakIterator* i) { ubrk_close(i); });
  }

  absl::Status Run(Text& text) const {
    std::u16string units;
    for (const TracedChar& c : text) {
      const auto code = static_cast<UChar32>(c.code);
      if (U16_LENGTH(code) == 2) units.push_back(static_cast<char16_t>(U16_LEAD(code)));
      units.push_back(static_cast<char16_t>(U16_LENGTH(code) == 2 ? U16_TRAIL(code) : code));
    }
    UErrorCode error = U_ZERO_ERROR;
    const std::unique_ptr<UBreakIterator, decltype(&ubrk_close)> clusters(ubrk_clone(clusters_.get(), &error),
                                                                          &ubrk_close);
    if (units.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
      return absl::InvalidArgumentError("the text is too long for this tokenizer");
    }
    ubrk_setText(clusters.get(), units.data(), static_cast<int32_t>(units.size()), &error);
    if (U_FAILURE(error)) return absl::InternalError("the text cannot be taken apart into characters");
    Text result;
    result.reserve(text.size());
    int32_t unit = ubrk_first(clusters.get());
    for (size_t begin = 0; begin < text.size();) {
      const int32_t unit_end = ubrk_next(clusters.get());
      size_t end = begin;
      for (; end < text.size() && unit < unit_end; ++end) {
        unit += U16_LENGTH(static_cast<UChar32>(text[end].code));
      }
      AppendCluster(std::span(text).subspan(begin, end - begin), result);
      begin = end;
    }
    text = std::move(result);
    return absl::OkStatus();
  }

 private:
  bool Replace(std::span<const TracedChar> part, Text& result) const {
    NormalizedText bytes;
    for (const TracedChar& c : part) bytes.Append(c);
    if (part.size() > 1 && bytes.text.size() >= kLongCluster) return false;
    const NormalizationRules::Match rule = rules_.Shortest(bytes.text);
    if (rule.length == 0) return false;
    for (TracedChar c : TraceText(rule.replacement, 0)) result.push_back({c.code, part.front().origin});
    return true;
  }

  void AppendCluster(std::span<const TracedChar> cluster, Text& result) const {
    if (Replace(cluster, result)) return;
    for (size_t i = 0; i < cluster.size(); ++i) {
      if (!Replace(cluster.subspan(i, 1), result)) result.push_back(cluster[i]);
    }
  }

  NormalizationRules rules_;
  std::shared_ptr<const UBreakIterator> clusters_;
};

absl::StatusOr<Rewriting> ReadPrecompiled(TokenizerPart& part) {
  const std::string encoded = part.fields.RequiredString("precompiled_charsmap");
  std::string bytes;
  NormalizationRules rules;
  if (encoded.empty() || !absl::Base64Unescape(encoded, &bytes) || !rules.ReadCharsMap(bytes)) {
    return part.Refuse("the precompiled_charsmap is damaged");
  }
  const auto map = std::make_shared<const CharsMap>(std::move(rules));
  return Rewriting([map](Text& text) { return map->Run(text); });
}

absl::StatusOr<Rewriting> ReadStrip(TokenizerPart& part) {
  const bool left = part.fields.RequiredBool("strip_left"), right = part.fields.RequiredBool("strip_right");
  return Rewriting([left, right](Text& text) {
    const auto is_text = [](const TracedChar& c) { return !IsWhiteSpace(c.code); };
    if (right) text.erase(std::find_if(text.rbegin(), text.rend(), is_text).base(), text.end());
    if (left) text.erase(text.begin(), std::find_if(text.begin(), text.end(), is_text));
    return absl::OkStatus();
  });
}

// Reads the text of a field, which has a maximum length.
absl::StatusOr<Text> ReadContent(TokenizerPart& part, const char* key) {
  const base::Json* const content = part.fields.json().Find(key);
  if (content == nullptr || content->AsString() == nullptr || content->AsString()->size() > kLongestContent) {
    return part.Refuse(absl::StrCat("the field \"", key, "\" is a text of at most ", kLongestContent, " bytes"));
  }
  part.fields.Ignore({key});
  return TraceText(*content->AsString(), 0);
}

absl::StatusOr<Rewriting> ReadPrepend(TokenizerPart& part) {
  const absl::StatusOr<Text> content = ReadContent(part, "prepend");
  if (!content.ok()) return content.status();
  return Rewriting([content = *content](Text& text) {
    if (text.empty()) return absl::OkStatus();
    Text prefix = content;
    for (TracedChar& c : prefix) c.origin = text.front().origin;
    text.insert(text.begin(), prefix.begin(), prefix.end());
    return absl::OkStatus();
  });
}

absl::StatusOr<Rewriting> ReadReplace(TokenizerPart& part) {
  const absl::StatusOr<Text> content = ReadContent(part, "content");
  if (!content.ok()) return content.status();
  absl::StatusOr<TextPattern> pattern = TextPattern::Read(part.fields.json().Find("pattern"));
  if (!pattern.ok()) return part.Refuse(std::string(pattern.status().message()));
  part.fields.Ignore({"pattern"});
  return Rewriting([content = *content, pattern = *std::move(pattern)](Text& text) {
    std::vector<TextPattern::Match> matches;
    RETURN_IF_ERROR(TextPattern::Finder(pattern).Find(text, matches));
    if (matches.empty()) return absl::OkStatus();
    Text result;
    size_t begin = 0;
    for (const TextPattern::Match& match : matches) {
      result.insert(result.end(), text.begin() + begin, text.begin() + match.begin);
      for (const TracedChar& c : content) result.push_back({c.code, text[match.end - 1].origin});
      begin = match.end;
    }
    result.insert(result.end(), text.begin() + begin, text.end());
    text = std::move(result);
    return absl::OkStatus();
  });
}

BertCleaning ReadBertCleaning(TokenizerPart& part) {
  BertCleaning cleaning;
  cleaning.removes_controls = part.fields.RequiredBool("clean_text");
  cleaning.spaces_chinese = part.fields.RequiredBool("handle_chinese_chars");
  cleaning.lowers = part.fields.RequiredBool("lowercase");
  cleaning.strips_accents = part.fields.Bool("strip_accents", cleaning.lowers);
  return cleaning;
}

constexpr struct {
  std::string_view type;
  Text (*rewrite)(const Text&);
} kRewrites[] = {{"ByteLevel", ToByteCharacters},
                 {"Lowercase", LowerCase},
                 {"NFC", ToNfc},
                 {"NFD", ToNfd},
                 {"NFKC", ToNfkc},
                 {"NFKD", ToNfkd},
                 {"Nmt", ToNmt},
                 {"StripAccents", WithoutMarks}};

constexpr struct {
  std::string_view type;
  absl::StatusOr<Rewriting> (*read)(TokenizerPart&);
} kRewritings[] = {
    {"Precompiled", ReadPrecompiled}, {"Prepend", ReadPrepend}, {"Replace", ReadReplace}, {"Strip", ReadStrip}};

absl::StatusOr<Rewriting> ReadRewriting(TokenizerPart& part) {
  std::vector<std::string> known = {"BertNormalizer", "Sequence"};
  for (const auto& entry : kRewrites) {
    if (part.type == entry.type) return Rewrite(entry.rewrite);
    known.emplace_back(entry.type);
  }
  for (const auto& entry : kRewritings) {
    if (part.type == entry.type) return entry.read(part);
    known.emplace_back(entry.type);
  }
  return UnknownPart(part, known);
}

}  // namespace

absl::StatusOr<TextNormalizer> TextNormalizer::Read(const base::Json* json, const std::string& name) {
  ASSIGN_OR_RETURN(std::vector<TokenizerPart> parts, ReadParts(json, name, "normalizers"));
  TextNormalizer normalizer;
  for (TokenizerPart& part : parts) {
    if (part.type == "BertNormalizer") {
      const BertCleaning cleaning = ReadBertCleaning(part);
      normalizer.bert_cleaning_ = cleaning;
      normalizer.steps_.push_back([cleaning](Text& text) {
        text = CleanBertText(text, cleaning);
        return absl::OkStatus();
      });
    } else {
      ASSIGN_OR_RETURN(Rewriting step, ReadRewriting(part));
      normalizer.steps_.push_back(std::move(step));
    }
    RETURN_IF_ERROR(part.Finish());
  }
  return normalizer;
}

absl::Status TextNormalizer::Run(std::vector<TracedChar>& text) const {
  const size_t most = text.size() * kMostGrowth + kFreeGrowth;
  for (const Rewriting& step : steps_) {
    RETURN_IF_ERROR(step(text));
    if (text.size() > most) {
      return absl::InvalidArgumentError("the tokenizer's normalizer makes this text more than 64 times as long");
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::models
