#include "models/tokenizers/clip_tokenizer.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "models/tokenizers/newer_characters.h"
#include "models/tokenizers/tokenizer_folder.h"

namespace tessera::models {
namespace {

constexpr std::string_view kStart = "<|startoftext|>";
constexpr std::string_view kEnd = "<|endoftext|>";
constexpr std::string_view kMarks[] = {kStart, kEnd};
constexpr std::string_view kContractions[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
constexpr size_t kBracket = 2;  // length of <| and |>

enum class CharClass { kSpace, kLetter, kNumber, kOther };

CharClass ClassOf(UChar32 c) {
  if (IsWhiteSpace(static_cast<char32_t>(c))) return CharClass::kSpace;
  const uint32_t mask = U_GET_GC_MASK(c);
  if ((mask & U_GC_L_MASK) != 0) return CharClass::kLetter;
  if ((mask & U_GC_N_MASK) != 0) return CharClass::kNumber;
  if (mask != U_GC_CN_MASK) return CharClass::kOther;
  const auto code = static_cast<char32_t>(c);
  if (IsNewerCharacter(code, 'L')) return CharClass::kLetter;
  return IsNewerCharacter(code, 'N') ? CharClass::kNumber : CharClass::kOther;
}

size_t LengthOfFirst(std::string_view text, std::span<const std::string_view> beginnings) {
  for (const std::string_view beginning : beginnings) {
    if (text.starts_with(beginning)) return beginning.size();
  }
  return 0;
}

}  // namespace

absl::StatusOr<ClipTokenizer> ClipTokenizer::Load(const std::string& path) {
  const TokenizerFolder folder(path);
  ClipTokenizerFiles files;
  for (const auto& [name, bytes] : {std::pair("vocab.json", &files.vocab_json),
                                    {"merges.txt", &files.merges_txt},
                                    {"tokenizer_config.json", &files.tokenizer_config_json}}) {
    ASSIGN_OR_RETURN(*bytes, folder.Read(name));
  }
  ASSIGN_OR_RETURN(files.special_tokens_map_json, folder.ReadIfThere("special_tokens_map.json"));
  ASSIGN_OR_RETURN(files.added_tokens_json, folder.ReadIfThere("added_tokens.json"));
  return Parse(files, folder.component());
}

absl::StatusOr<ClipTokenizer> ClipTokenizer::Parse(const ClipTokenizerFiles& files, const std::string& component) {
  ASSIGN_OR_RETURN(BytePairs pairs, BytePairs::Parse(files.vocab_json, files.merges_txt, component));
  absl::StatusOr<TokenNames> names =
      TokenNames::Parse(files.tokenizer_config_json, files.special_tokens_map_json, files.added_tokens_json, component);
  if (!names.ok()) return names.status();

  ClipTokenizer tokenizer(std::move(pairs));
  names->config().Choice("tokenizer_class", "CLIPTokenizer", {"CLIPTokenizer", "CLIPTokenizerFast"});
  tokenizer.vocabulary_size_ = tokenizer.pairs_.size();
  const SpecialTokenFields fields = {.start = {"bos_token", kStart},
                                     .end = {"eos_token", kEnd},
                                     .unknown = {"unk_token", kEnd},
                                     .pad = {"pad_token", kEnd}};
  absl::Status status = tokenizer.TakeTokens(
      *names, fields, [&](const std::string& text) { return tokenizer.pairs_.Find(text); },
      absl::StrCat(component, "/vocab.json"));
  if (!status.ok()) return status;
  return tokenizer;
}

// Composes and lowers the text, and replaces every run of white space by one space.
NormalizedText ClipTokenizer::Normalize(std::string_view utf8, size_t origin) const {
  NormalizedText result;
  bool in_space = false;
  for (TracedChar c : LowerCase(Compose(Decompose(TraceText(utf8, origin))))) {
    const bool space = IsWhiteSpace(c.code);
    if (space) c.code = ' ';
    if (!space || !in_space) result.Append(c);
    in_space = space;
  }
  return result;
}

void ClipTokenizer::SplitWords(const NormalizedText& text, size_t begin, size_t end,
                               std::vector<PieceId>& pieces) const {
  const std::string_view bytes = std::string_view(text.text).substr(0, end);
  std::vector<PairMerges::Piece> word_pieces;
  const auto class_at = [bytes](size_t& position) {
    UChar32 c;
    U8_NEXT(reinterpret_cast<const uint8_t*>(bytes.data()), position, bytes.size(), c);
    return ClassOf(c);
  };
  const auto encode = [&](size_t word_end) {
    pairs_.Encode(bytes.substr(begin, word_end - begin), unknown_id(), word_pieces);
    for (const PairMerges::Piece& piece : word_pieces) pieces.push_back({piece.id, text.origins[begin + piece.begin]});
    begin = word_end;
  };
  while (begin < end) {
    // The text of a special token that is not the token itself, for example because it was in capitals before lowering,
    // is three words.
    if (const size_t mark = LengthOfFirst(bytes.substr(begin), kMarks); mark > 0) {
      const size_t mark_end = begin + mark;
      for (const size_t word_end : {begin + kBracket, mark_end - kBracket, mark_end}) encode(word_end);
      continue;
    }
    size_t word_end = begin + LengthOfFirst(bytes.substr(begin), kContractions);
    if (word_end == begin) {
      const CharClass word_class = class_at(word_end);
      if (word_class == CharClass::kSpace) {
        begin = word_end;
        continue;
      }
      for (size_t next = word_end; word_class != CharClass::kNumber && next < end; word_end = next) {
        if (class_at(next) != word_class) break;
      }
    }
    encode(word_end);
  }
}

}  // namespace tessera::models
