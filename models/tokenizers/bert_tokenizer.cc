#include "models/tokenizers/bert_tokenizer.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "models/tokenizers/tokenizer_folder.h"

namespace tessera {
namespace {

constexpr std::string_view kContinuation = "##";
constexpr int64_t kLongestWord = 100;  // characters; longer words are unknown
constexpr char32_t kReplacementCharacter = 0xFFFD;

// The reference's tables of categories end with Unicode 8: what came later is neither mark nor punctuation to it.
constexpr uint8_t kUnicodeVersion = 8;

bool HasCategory(char32_t code, uint32_t mask) {
  const auto c = static_cast<UChar32>(code);
  if ((U_GET_GC_MASK(c) & mask) == 0) return false;
  UVersionInfo age;
  u_charAge(c, age);
  return age[0] <= kUnicodeVersion;
}

bool IsRemoved(char32_t code) {
  if (code == '\t' || code == '\n' || code == '\r') return false;
  return code == kReplacementCharacter || HasCategory(code, U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK);
}

bool IsPunctuation(char32_t code) {
  return code < 0x80 ? absl::ascii_ispunct(static_cast<unsigned char>(code)) : HasCategory(code, U_GC_P_MASK);
}

// The blocks of ideographs that the reference lists (not Extension E from its beginning).
bool IsChinese(char32_t code) {
  constexpr std::pair<char32_t, char32_t> kRanges[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},
                                                       {0x20000, 0x2A6DF}, {0x2A700, 0x2B81F}, {0x2B920, 0x2CEAF},
                                                       {0x2F800, 0x2FA1F}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [code](const auto& range) { return code >= range.first && code <= range.second; });
}

bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    UChar32 c;
    U8_NEXT(reinterpret_cast<const uint8_t*>(text.data()), i, text.size(), c);
    if (c < 0) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<BertTokenizer> BertTokenizer::Load(const std::string& path) {
  const TokenizerFolder folder(path);
  absl::StatusOr<std::string> vocabulary = folder.Read("vocab.txt");
  if (!vocabulary.ok()) return vocabulary.status();
  absl::StatusOr<std::string> config = folder.Read("tokenizer_config.json");
  if (!config.ok()) return config.status();
  absl::StatusOr<std::optional<std::string>> map = folder.ReadIfThere("special_tokens_map.json");
  if (!map.ok()) return map.status();
  return Parse({.vocab_txt = *std::move(vocabulary),
                .tokenizer_config_json = *std::move(config),
                .special_tokens_map_json = *std::move(map)},
               folder.component());
}

absl::StatusOr<BertTokenizer> BertTokenizer::Parse(const BertTokenizerFiles& files, const std::string& component) {
  BertTokenizer tokenizer;
  const std::string vocabulary_name = absl::StrCat(component, "/vocab.txt");
  if (absl::Status status = tokenizer.ReadVocabulary(files.vocab_txt, vocabulary_name); !status.ok()) return status;
  absl::StatusOr<TokenNames> names =
      TokenNames::Parse(files.tokenizer_config_json, files.special_tokens_map_json, component);
  if (!names.ok()) return names.status();

  ConfigReader& config = names->config();
  config.Choice("tokenizer_class", "BertTokenizer", {"BertTokenizer", "BertTokenizerFast"});
  tokenizer.lowers_ = config.Bool("do_lower_case", true);
  tokenizer.strips_accents_ = config.Bool("strip_accents", tokenizer.lowers_);
  tokenizer.spaces_chinese_ = config.Bool("tokenize_chinese_chars", true);
  const SpecialTokenFields fields = {.start = {"cls_token", "[CLS]"},
                                     .end = {"sep_token", "[SEP]"},
                                     .unknown = {"unk_token", "[UNK]"},
                                     .pad = {"pad_token", "[PAD]"},
                                     .mask = TokenNames::Field{"mask_token", "[MASK]", /*required=*/false}};
  const auto find = [&](const std::string& text) -> std::optional<int64_t> {
    const auto found = tokenizer.ids_.find(text);
    if (found == tokenizer.ids_.end()) return std::nullopt;
    return found->second;
  };
  if (absl::Status status = tokenizer.TakeTokens(*names, fields, find, vocabulary_name); !status.ok()) return status;
  return tokenizer;
}

absl::Status BertTokenizer::ReadVocabulary(std::string_view text, const std::string& name) {
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(name, " is empty; it has one token a line"));
  for (const std::string_view line : SplitLines(text)) {
    const int64_t id = vocabulary_size_++;
    if (line.empty()) continue;  // has an id, and nothing is ever spelled with it
    if (!IsUtf8(line)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": line ", id + 1, " is not valid UTF-8"));
    }
    if (const auto [other, is_new] = ids_.emplace(line, id); !is_new) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": lines ", other->second + 1, " and ", id + 1,
                                                     " are the same, ", Quote(line), "; every token has one id"));
    }
    longest_piece_ = std::max(longest_piece_, line.size());
  }
  return absl::OkStatus();
}

NormalizedText BertTokenizer::Normalize(std::string_view utf8, size_t origin) const {
  std::vector<TracedChar> text;
  text.reserve(utf8.size());
  for (TracedChar c : TraceText(utf8, origin)) {
    if (IsRemoved(c.code)) continue;
    if (IsWhiteSpace(c.code)) c.code = ' ';
    const bool spaced = spaces_chinese_ && IsChinese(c.code);
    if (spaced) text.push_back({' ', c.origin});
    text.push_back(c);
    if (spaced) text.push_back({' ', c.origin});
  }
  if (strips_accents_) {
    text = Decompose(text);
    std::erase_if(text, [](const TracedChar& c) { return HasCategory(c.code, U_GC_MN_MASK); });
  }
  if (lowers_) text = LowerCase(text);
  NormalizedText result;
  for (const TracedChar& c : text) result.Append(c);
  return result;
}

void BertTokenizer::SplitWords(const NormalizedText& text, size_t begin, size_t end,
                               std::vector<PieceId>& pieces) const {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.text.data());
  size_t word_begin = begin;
  const auto end_word = [&](size_t word_end) {
    if (word_begin < word_end) SplitWord(text, word_begin, word_end, pieces);
  };
  for (size_t i = begin; i < end;) {
    const size_t char_begin = i;
    UChar32 c;
    U8_NEXT(bytes, i, end, c);
    const auto code = static_cast<char32_t>(c);
    if (!IsWhiteSpace(code) && !IsPunctuation(code)) continue;
    end_word(char_begin);
    word_begin = i;
    if (!IsWhiteSpace(code)) SplitWord(text, char_begin, i, pieces);
  }
  end_word(end);
}

void BertTokenizer::SplitWord(const NormalizedText& text, size_t begin, size_t end,
                              std::vector<PieceId>& pieces) const {
  const std::string_view word = std::string_view(text.text).substr(begin, end - begin);
  const size_t pieces_before = pieces.size();
  const auto give_up = [&] {
    pieces.resize(pieces_before);
    pieces.push_back({unknown_id(), text.origins[begin]});
  };
  const auto begins_character = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; };
  if (std::count_if(word.begin(), word.end(), begins_character) > kLongestWord) return give_up();
  for (size_t position = 0; position < word.size();) {
    std::string piece(position == 0 ? "" : kContinuation);
    const size_t prefix = piece.size();
    piece += word.substr(position, longest_piece_ - std::min(longest_piece_, prefix));
    // The longest first. A character that is cut in two has no piece, as every piece is well-formed.
    auto found = ids_.end();
    while (piece.size() > prefix && (found = ids_.find(piece)) == ids_.end()) piece.pop_back();
    if (found == ids_.end()) return give_up();
    pieces.push_back({found->second, text.origins[begin + position]});
    position += piece.size() - prefix;
  }
}

}  // namespace tessera
