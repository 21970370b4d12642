#include "models/tokenizers/word_tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/macros/status_macros.h"

namespace tessera::models {

absl::Status WordTokenizer::TakeTokens(TokenNames& names, const SpecialTokenFields& fields,
                                       const std::function<std::optional<int64_t>(const std::string&)>& find,
                                       const std::string& vocabulary_name) {
  TakeLengths(names);
  const bool splits_special = names.SplitsSpecialTokens();
  RETURN_IF_ERROR(names.config().status());
  // In the order in which the reference reads them; see TokenNames::Resolve.
  std::vector<TokenNames::Field> order = {fields.start, fields.end, fields.unknown, fields.pad};
  if (fields.mask) order.push_back(*fields.mask);
  ASSIGN_OR_RETURN(const std::vector<AddedToken> tokens, names.Resolve(order, find, vocabulary_name));

  std::vector<AddedToken> in_original, in_normalized;
  for (AddedToken token : tokens) {
    const auto is = [&](const TokenNames::Field& field) {
      return token.text == names.Token(field.key, field.fallback);
    };
    if (is(fields.start)) before_ = {token.id};
    if (is(fields.end)) after_ = {token.id};
    if (is(fields.unknown)) unknown_id_ = token.id;
    if (is(fields.pad)) pad_id_ = token.id;
    vocabulary_size_ = std::max(vocabulary_size_, token.id + 1);
    if (token.normalized) token.text = Normalize(token.text, 0).text;
    if (!token.text.empty()) (token.normalized ? in_normalized : in_original).push_back(std::move(token));
  }
  original_finder_ = AddedTokenFinder(in_original, splits_special);
  normalized_finder_ = AddedTokenFinder(in_normalized, splits_special);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PieceId>> WordTokenizer::Split(std::string_view utf8) const {
  std::vector<PieceId> pieces;
  size_t part_begin = 0;
  const auto split_part = [&](size_t part_end) {
    if (part_begin == part_end) return;
    const NormalizedText text = Normalize(utf8.substr(part_begin, part_end - part_begin), part_begin);
    size_t words_begin = 0;
    for (const AddedTokenFinder::Match& match : normalized_finder_.Find(text.text)) {
      SplitWords(text, words_begin, match.begin, pieces);
      pieces.push_back({match.id, text.origins[match.begin]});
      words_begin = match.end;
    }
    SplitWords(text, words_begin, text.text.size(), pieces);
  };
  for (const AddedTokenFinder::Match& match : original_finder_.Find(utf8)) {
    split_part(match.begin);
    pieces.push_back({match.id, match.begin});
    part_begin = match.end;
  }
  split_part(utf8.size());
  return pieces;
}

}  // namespace tessera::models
