#include <unicode/utf8.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/macros/status_macros.h"
#include "models/tokenizers/pair_merges.h"
#include "models/tokenizers/piece_model.h"
#include "models/tokenizers/tokenizer_parts.h"
#include "models/tokenizers/vocabulary_object.h"

namespace tessera::models {
namespace {

constexpr std::string_view kVersionOfMerges = "#version";
constexpr size_t kLongestAffix = 100;  // bytes
constexpr int32_t kNoUnknown = -1;

class BpeModel final : public PieceModel {
 public:
  absl::Status Read(TokenizerPart& part) {
    ASSIGN_OR_RETURN(vocabulary_, ReadVocabularyObject(part));
    ASSIGN_OR_RETURN(unknown_id_, FindUnknown(part, vocabulary_));
    base::ConfigReader& fields = part.fields;
    if (unknown_id_) unknown_token_ = fields.String("unk_token", "");
    if (fields.Number("dropout", 0, 0, 1) != 0) fields.AddError("dropout", "valid values are null and 0");
    prefix_ = fields.String("continuing_subword_prefix", "");
    suffix_ = fields.String("end_of_word_suffix", "");
    if (std::max(prefix_.size(), suffix_.size()) > kLongestAffix) {
      return part.Refuse(absl::StrCat("prefix and suffix have at most ", kLongestAffix, " bytes"));
    }
    joins_unknown_ = fields.Bool("fuse_unk", false);
    takes_whole_pieces_ = fields.Bool("ignore_merges", false);
    if (fields.Bool("byte_fallback", false)) FindBytes();
    return ReadMerges(part);
  }

  const TokenTable<int32_t>& vocabulary() const override { return vocabulary_; }
  std::string_view unknown_token() const override { return unknown_token_; }

  void Encode(const NormalizedText& piece, std::vector<PieceId>& tokens) const override {
    if (takes_whole_pieces_) {
      if (const std::optional<int32_t> id = Find(piece.text)) {
        tokens.push_back({*id, piece.origins.front()});
        return;
      }
    }
    std::vector<PairMerges::Piece> symbols = Symbols(piece.text);
    merges_.Join(symbols);
    for (const PairMerges::Piece& symbol : symbols) tokens.push_back({symbol.id, piece.origins[symbol.begin]});
  }

 private:
  std::optional<int32_t> Find(std::string_view text) const {
    const auto found = vocabulary_.find(text);
    return found == vocabulary_.end() ? std::nullopt : std::make_optional(found->second);
  }

  void FindBytes() {
    for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
      byte_ids_[byte] = Find(absl::StrFormat("<0x%02X>", byte));
    }
  }

  // Reads merges. Each is a pair, or a string of both separated by a space. The result of a merge omits the prefix of
  // its second part.
  absl::Status ReadMerges(TokenizerPart& part) {
    const base::Json* const merges = part.fields.json().Find("merges");
    if (merges == nullptr || !merges->is_array()) return part.Refuse("the field \"merges\" is a list of pairs");
    part.fields.Ignore({"merges"});
    int32_t rank = 0;
    for (const base::Json& merge : merges->items()) {
      std::string left, right;
      if (const std::string* text = merge.AsString()) {
        if (text->starts_with(kVersionOfMerges)) continue;
        const size_t space = std::min(text->find(' '), text->size());
        left = text->substr(0, space);
        right = text->substr(std::min(space + 1, text->size()));
        if (right.find(' ') != right.npos) right.clear();
      } else if (merge.items().size() == 2 && merge.items()[0].AsString() && merge.items()[1].AsString()) {
        left = *merge.items()[0].AsString();
        right = *merge.items()[1].AsString();
      }
      const std::optional<int32_t> left_id = Find(left), right_id = Find(right);
      if (!left_id || !right_id || right.size() < prefix_.size()) {
        return part.Refuse(absl::StrCat("merge ", rank, " is not a pair of two tokens of the vocabulary"));
      }
      const std::string joined = left + right.substr(prefix_.size());
      const std::optional<int32_t> joined_id = Find(joined);
      if (!joined_id) {
        return part.Refuse(
            absl::StrCat("merge ", rank, " makes ", base::Quote(joined), ", which the vocabulary does not have"));
      }
      merges_.Add(*left_id, *right_id, rank++, *joined_id);
    }
    return absl::OkStatus();
  }

  // Returns the initial symbols: one per character that the vocabulary has. Any other character becomes its bytes, if
  // the vocabulary has them, or the unknown token, if there is one.
  std::vector<PairMerges::Piece> Symbols(std::string_view text) const {
    std::vector<PairMerges::Piece> symbols;
    int32_t unknown_begin = kNoUnknown;  // of an unknown token that has not been written yet
    const auto write_unknown = [&] {
      if (unknown_begin != kNoUnknown) symbols.push_back({.id = *unknown_id_, .begin = unknown_begin});
      unknown_begin = kNoUnknown;
    };
    std::string character;
    for (size_t end = 0; end < text.size();) {
      const auto begin = static_cast<int32_t>(end);
      U8_FWD_1_UNSAFE(text.data(), end);
      character = begin > 0 ? prefix_ : "";
      character += text.substr(static_cast<size_t>(begin), end - static_cast<size_t>(begin));
      if (end == text.size()) character += suffix_;
      if (const std::optional<int32_t> id = Find(character)) {
        write_unknown();
        symbols.push_back({.id = *id, .begin = begin});
      } else if (HasBytes(character)) {
        // As in the reference, a pending unknown token comes after the bytes.
        for (const char byte : character) {
          symbols.push_back({.id = *byte_ids_[static_cast<unsigned char>(byte)], .begin = begin});
        }
      } else if (unknown_id_) {
        if (!joins_unknown_) write_unknown();
        if (unknown_begin == kNoUnknown) unknown_begin = begin;
      }
    }
    write_unknown();
    return symbols;
  }

  bool HasBytes(std::string_view text) const {
    return std::all_of(text.begin(), text.end(),
                       [this](char byte) { return byte_ids_[static_cast<unsigned char>(byte)].has_value(); });
  }

  TokenTable<int32_t> vocabulary_;
  PairMerges merges_;
  std::array<std::optional<int32_t>, 256> byte_ids_;  // empty without byte fallback
  std::optional<int32_t> unknown_id_;
  std::string unknown_token_, prefix_, suffix_;
  bool joins_unknown_ = false;
  bool takes_whole_pieces_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PieceModel>> ReadBpeModel(TokenizerPart& part) {
  auto model = std::make_unique<BpeModel>();
  RETURN_IF_ERROR(model->Read(part));
  return model;
}

}  // namespace tessera::models
