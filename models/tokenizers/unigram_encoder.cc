#include "models/tokenizers/unigram_encoder.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

namespace tessera::models {
namespace {

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581
// How much lower the score of an unknown character is than that of the least probable piece.
constexpr float kUnknownTokenPenalty = 10.0f;

size_t CharacterLength(char first) {
  const int ones = std::countl_one(static_cast<unsigned char>(first));
  return ones < 2 || ones > 4 ? 1 : static_cast<size_t>(ones);
}

// Returns the length of the longest user-defined piece at the beginning of the text. Such pieces are not normalized.
size_t UserDefinedLength(const SentencePieceModel& model, std::string_view text) {
  PrefixIndex::Search search(model.text_pieces());
  size_t longest = 0;
  for (size_t i = 0; i < text.size() && search.Advance(text[i]); ++i) {
    const std::optional<int64_t> id = search.Match();
    if (id && model.piece(*id).type == PieceType::kUserDefined) longest = i + 1;
  }
  return longest;
}

class Normalizer {
 public:
  explicit Normalizer(const SentencePieceModel& model) : model_(model), rules_(model.rules()) {}

  NormalizedText Run(std::string_view text) {
    size_t position = 0;
    if (rules_.remove_extra_whitespaces) {
      while (position < text.size()) {
        const auto [replacement, length] = NormalizePrefix(text.substr(position));
        if (replacement != " ") break;
        position += length;
      }
    }
    if (position == text.size()) return {};
    const bool as_suffix = model_.treat_whitespace_as_suffix();
    if (rules_.add_dummy_prefix && !as_suffix) AppendSpace(position);
    bool after_space = rules_.remove_extra_whitespaces;
    while (position < text.size()) {
      auto [replacement, length] = NormalizePrefix(text.substr(position));
      while (after_space && !replacement.empty() && replacement.front() == ' ') replacement.remove_prefix(1);
      for (const char c : replacement) {
        if (c == ' ') {
          AppendSpace(position);
        } else {
          Append(c, position);
        }
      }
      if (!replacement.empty()) after_space = rules_.remove_extra_whitespaces && replacement.back() == ' ';
      position += length;
    }
    if (rules_.remove_extra_whitespaces) {
      while (result_.text.ends_with(space())) {
        result_.text.erase(result_.text.size() - space().size());
        result_.origins.resize(result_.text.size());
      }
    }
    if (rules_.add_dummy_prefix && as_suffix) AppendSpace(text.size());
    return std::move(result_);
  }

 private:
  std::string_view space() const { return rules_.escape_whitespaces ? kSpaceSymbol : " "; }
  void AppendSpace(size_t origin) {
    for (const char c : space()) Append(c, origin);
  }
  void Append(char byte, size_t origin) {
    result_.text.push_back(byte);
    result_.origins.push_back(origin);
  }

  // Returns the replacement of the beginning of the text, and the length of that beginning.
  std::pair<std::string_view, size_t> NormalizePrefix(std::string_view text) const {
    if (model_.has_user_defined()) {
      if (const size_t length = UserDefinedLength(model_, text)) return {text.substr(0, length), length};
    }
    if (const NormalizationRules::Match rule = rules_.Longest(text); rule.length > 0) {
      return {rule.replacement, rule.length};
    }
    const size_t length = std::min(CharacterLength(text.front()), text.size());
    return {text.substr(0, length), length};
  }

  const SentencePieceModel& model_;
  const NormalizationRules& rules_;
  NormalizedText result_;
};

struct Node {
  float score = 0;
  size_t begin = 0;
  int64_t id = -1;  // of the last piece of the best path that ends here; -1 if there is none yet
};

// Returns the best path to every position of the text. Scores are rounded like in the library, so that near ties are
// decided the same way: the sums for a piece are compared in double and stored in float.
std::vector<Node> BestPaths(const SentencePieceModel& model, std::string_view text) {
  const float unknown_score = model.lowest_score() - kUnknownTokenPenalty;
  std::vector<Node> nodes(text.size() + 1);
  for (size_t begin = 0; begin < text.size();) {
    const float score_here = nodes[begin].score;
    const size_t character = std::min(CharacterLength(text[begin]), text.size() - begin);
    bool has_single = false;
    const auto offer = [&](size_t end, double score, int64_t id) {
      Node& node = nodes[end];
      if (node.id < 0 || score > node.score) node = {static_cast<float>(score), begin, id};
    };
    PrefixIndex::Search search(model.text_pieces());
    for (size_t end = begin; end < text.size() && search.Advance(text[end]);) {
      ++end;
      const std::optional<int64_t> id = search.Match();
      if (!id || model.piece(*id).type == PieceType::kUnused) continue;
      const size_t length = end - begin;
      // A user-defined piece always wins.
      const double score = model.piece(*id).type == PieceType::kUserDefined
                               ? static_cast<float>(length) * model.highest_score() - 0.1
                               : static_cast<double>(model.piece(*id).score);
      offer(end, score + score_here, *id);
      has_single = has_single || length == character;
    }
    if (!has_single) offer(begin + character, unknown_score + score_here, model.unknown_id());
    begin += character;
  }
  return nodes;
}

}  // namespace

NormalizedText NormalizeForPieces(const SentencePieceModel& model, std::string_view utf8) {
  return Normalizer(model).Run(utf8);
}

std::vector<PieceId> EncodeUnigram(const SentencePieceModel& model, std::string_view utf8) {
  const NormalizedText normalized = NormalizeForPieces(model, utf8);
  const std::vector<Node> nodes = BestPaths(model, normalized.text);
  std::vector<std::pair<size_t, size_t>> path;  // begin and end of each piece, last one first
  for (size_t end = normalized.text.size(); end > 0; end = nodes[end].begin) path.emplace_back(nodes[end].begin, end);
  std::vector<PieceId> ids;
  bool after_unknown = false;
  for (auto piece = path.rbegin(); piece != path.rend(); ++piece) {
    const int64_t id = nodes[piece->second].id;
    const size_t origin = normalized.origins[piece->first];
    const bool unknown = id == model.unknown_id();
    if (unknown && model.has_byte_fallback()) {
      for (size_t i = piece->first; i < piece->second; ++i) {
        ids.push_back({model.byte_id(static_cast<unsigned char>(normalized.text[i])), origin});
      }
    } else if (!unknown || !after_unknown) {
      ids.push_back({id, origin});
    }
    after_unknown = unknown;
  }
  return ids;
}

}  // namespace tessera::models
