#include <unicode/utf8.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/macros/status_macros.h"
#include "models/tokenizers/piece_model.h"
#include "models/tokenizers/prefix_index.h"
#include "models/tokenizers/tokenizer_parts.h"

namespace tessera::models {
namespace {

// How much lower the score of an unknown character is than that of the least probable token.
constexpr double kUnknownPenalty = 10;

class UnigramModel final : public PieceModel {
 public:
  absl::Status Read(TokenizerPart& part) {
    const base::Json* const list = part.fields.json().Find("vocab");
    if (list == nullptr || list->items().empty()) {
      return part.Refuse("the field \"vocab\" is a list of tokens with their scores");
    }
    part.fields.Ignore({"vocab"});
    double lowest = std::numeric_limits<double>::infinity();
    for (const base::Json& item : list->items()) {
      const std::span<const base::Json> pair = item.items();
      const std::string* const text = pair.size() == 2 ? pair[0].AsString() : nullptr;
      const std::optional<double> score = pair.size() == 2 ? pair[1].AsNumber() : std::nullopt;
      const auto id = static_cast<int32_t>(scores_.size());
      if (text == nullptr || !score || !std::isfinite(*score)) {
        return part.Refuse(absl::StrCat("token ", id, " of the vocabulary is not a text and a finite score"));
      }
      ids_.insert_or_assign(*text, id);
      scores_.push_back(*score);
      lowest = std::min(lowest, *score);
    }
    const auto last = static_cast<int64_t>(scores_.size()) - 1;
    unknown_id_ = static_cast<int32_t>(part.fields.RequiredInt("unk_id", 0, last));
    RETURN_IF_ERROR(part.fields.status());
    unknown_token_ = *list->items()[unknown_id_].items()[0].AsString();
    unknown_score_ = lowest - kUnknownPenalty;
    texts_ = PrefixIndex({ids_.begin(), ids_.end()});
    if (part.fields.Bool("byte_fallback", false)) byte_ids_ = FindBytes();
    return absl::OkStatus();
  }

  const TokenTable<int32_t>& vocabulary() const override { return ids_; }
  int64_t entries() const override { return static_cast<int64_t>(scores_.size()); }
  std::string_view unknown_token() const override { return unknown_token_; }
  void UseUnknownToken() override { byte_ids_.fill(std::nullopt); }
  void UseBytes() override {
    const auto is_there = [](const std::optional<int32_t>& id) { return id.has_value(); };
    const std::array<std::optional<int32_t>, 256> bytes = FindBytes();
    if (std::all_of(bytes.begin(), bytes.end(), is_there)) byte_ids_ = bytes;
  }

  void Encode(const NormalizedText& piece, std::vector<PieceId>& tokens) const override {
    const std::vector<Node> nodes = BestPaths(piece.text);
    std::vector<std::pair<size_t, size_t>> path;  // begin and end of each token, last one first
    for (size_t end = piece.text.size(); end > 0;) {
      // Adjacent unknown characters become one token.
      size_t begin = nodes[end].begin;
      while (nodes[end].id == unknown_id_ && begin > 0 && nodes[begin].id == unknown_id_) begin = nodes[begin].begin;
      path.emplace_back(begin, end);
      end = begin;
    }
    for (auto part = path.rbegin(); part != path.rend(); ++part) {
      Spell(piece, part->first, part->second, tokens);
    }
  }

 private:
  struct Node {
    double score = 0;
    size_t begin = 0;
    int32_t id = -1;  // of the last token of the best path that ends here; -1 if there is none yet
  };

  std::array<std::optional<int32_t>, 256> FindBytes() const {
    std::array<std::optional<int32_t>, 256> bytes;
    for (size_t byte = 0; byte < bytes.size(); ++byte) {
      const auto found = ids_.find(absl::StrFormat("<0x%02X>", byte));
      if (found != ids_.end()) bytes[byte] = found->second;
    }
    return bytes;
  }

  std::vector<Node> BestPaths(std::string_view text) const {
    std::vector<Node> nodes(text.size() + 1);
    for (size_t begin = 0; begin < text.size();) {
      const double score_here = nodes[begin].score;
      size_t next = begin;
      U8_FWD_1_UNSAFE(text.data(), next);
      bool has_single = false;
      const auto offer = [&](size_t end, double score, int32_t id) {
        Node& node = nodes[end];
        if (node.id < 0 || score > node.score) node = {score, begin, id};
      };
      PrefixIndex::Search search(texts_);
      for (size_t end = begin; end < text.size() && search.Advance(text[end]);) {
        ++end;
        const std::optional<int64_t> id = search.Match();
        if (!id) continue;
        offer(end, scores_[*id] + score_here, static_cast<int32_t>(*id));
        has_single = has_single || end == next;
      }
      if (!has_single) offer(next, unknown_score_ + score_here, unknown_id_);
      begin = next;
    }
    return nodes;
  }

  void Spell(const NormalizedText& piece, size_t begin, size_t end, std::vector<PieceId>& tokens) const {
    const std::string_view text = std::string_view(piece.text).substr(begin, end - begin);
    const auto id_of = [this](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
    if (const auto found = ids_.find(text); found != ids_.end()) {
      tokens.push_back({found->second, piece.origins[begin]});
    } else if (std::all_of(text.begin(), text.end(), [&](char byte) { return id_of(byte).has_value(); })) {
      for (size_t i = begin; i < end; ++i) tokens.push_back({*id_of(piece.text[i]), piece.origins[i]});
    } else {
      tokens.push_back({unknown_id_, piece.origins[begin]});
    }
  }

  TokenTable<int32_t> ids_;
  std::vector<double> scores_;
  PrefixIndex texts_;
  std::array<std::optional<int32_t>, 256> byte_ids_;  // empty if unknown characters become the unknown token
  int32_t unknown_id_ = 0;
  std::string unknown_token_;
  double unknown_score_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PieceModel>> ReadUnigramModel(TokenizerPart& part) {
  auto model = std::make_unique<UnigramModel>();
  RETURN_IF_ERROR(model->Read(part));
  return model;
}

}  // namespace tessera::models
