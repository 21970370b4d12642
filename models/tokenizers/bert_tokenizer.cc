#include "models/tokenizers/bert_tokenizer.h"

#include <unicode/utf8.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/text/utf8.h"
#include "models/tokenizers/tokenizer_folder.h"

namespace tessera::models {
namespace {

constexpr char kContinuation[] = "##";
constexpr int64_t kLongestWord = 100;  // characters; longer words are unknown

}  // namespace

BertTokenizer::BertTokenizer() : pieces_(kContinuation, kLongestWord) {}

absl::StatusOr<BertTokenizer> BertTokenizer::Load(const std::string& path) {
  const TokenizerFolder folder(path);
  ASSIGN_OR_RETURN(std::string vocabulary, folder.Read("vocab.txt"));
  ASSIGN_OR_RETURN(std::string config, folder.Read("tokenizer_config.json"));
  ASSIGN_OR_RETURN(std::optional<std::string> map, folder.ReadIfThere("special_tokens_map.json"));
  ASSIGN_OR_RETURN(std::optional<std::string> added, folder.ReadIfThere("added_tokens.json"));
  return Parse({.vocab_txt = std::move(vocabulary),
                .tokenizer_config_json = std::move(config),
                .special_tokens_map_json = std::move(map),
                .added_tokens_json = std::move(added)},
               folder.component());
}

absl::StatusOr<BertTokenizer> BertTokenizer::Parse(const BertTokenizerFiles& files, const std::string& component) {
  BertTokenizer tokenizer;
  const std::string vocabulary_name = absl::StrCat(component, "/vocab.txt");
  RETURN_IF_ERROR(tokenizer.ReadVocabulary(files.vocab_txt, vocabulary_name));
  absl::StatusOr<TokenNames> names =
      TokenNames::Parse(files.tokenizer_config_json, files.special_tokens_map_json, files.added_tokens_json, component);
  if (!names.ok()) return names.status();

  base::ConfigReader& config = names->config();
  config.Choice("tokenizer_class", "BertTokenizer", {"BertTokenizer", "BertTokenizerFast"});
  BertCleaning& cleaning = tokenizer.cleaning_;
  cleaning.lowers = config.Bool("do_lower_case", true);
  cleaning.strips_accents = config.Bool("strip_accents", cleaning.lowers);
  cleaning.spaces_chinese = config.Bool("tokenize_chinese_chars", true);
  const SpecialTokenFields fields = {.start = {"cls_token", "[CLS]"},
                                     .end = {"sep_token", "[SEP]"},
                                     .unknown = {"unk_token", "[UNK]"},
                                     .pad = {"pad_token", "[PAD]"},
                                     .mask = TokenNames::Field{"mask_token", "[MASK]", /*required=*/false}};
  const auto find = [&](const std::string& text) { return tokenizer.pieces_.Find(text); };
  RETURN_IF_ERROR(tokenizer.TakeTokens(*names, fields, find, vocabulary_name));
  return tokenizer;
}

absl::Status BertTokenizer::ReadVocabulary(std::string_view text, const std::string& name) {
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(name, " is empty; it has one token a line"));
  for (const std::string_view line : SplitLines(text)) {
    const int64_t id = vocabulary_size_++;
    if (line.empty()) continue;  // has an id, but no word is spelled with it
    if (base::FirstInvalidUtf8({line.data(), line.size()}) < line.size()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": line ", id + 1, " is not valid UTF-8"));
    }
    if (const std::optional<int64_t> other = pieces_.Add(line, id)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": lines ", *other + 1, " and ", id + 1, " are the same, ",
                                                     base::Quote(line), "; every token has one id"));
    }
  }
  return absl::OkStatus();
}

NormalizedText BertTokenizer::Normalize(std::string_view utf8, size_t origin) const {
  NormalizedText result;
  for (const TracedChar& c : CleanBertText(TraceText(utf8, origin), cleaning_)) result.Append(c);
  return result;
}

void BertTokenizer::SplitWords(const NormalizedText& text, size_t begin, size_t end,
                               std::vector<PieceId>& pieces) const {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.text.data());
  size_t word_begin = begin;
  std::vector<PairMerges::Piece> word_pieces;
  const auto spell = [&](size_t from, size_t to) {
    if (from == to) return;
    pieces_.Encode(std::string_view(text.text).substr(from, to - from), unknown_id(), word_pieces);
    for (const PairMerges::Piece& piece : word_pieces) pieces.push_back({piece.id, text.origins[from + piece.begin]});
  };
  for (size_t i = begin; i < end;) {
    const size_t char_begin = i;
    UChar32 c;
    U8_NEXT(bytes, i, end, c);
    const auto code = static_cast<char32_t>(c);
    if (!IsWhiteSpace(code) && !IsBertPunctuation(code)) continue;
    spell(word_begin, char_begin);
    word_begin = i;
    if (!IsWhiteSpace(code)) spell(char_begin, i);
  }
  spell(word_begin, end);
}

}  // namespace tessera::models
