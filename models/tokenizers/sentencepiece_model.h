// SentencePieceModel holds a sentencepiece unigram model (spiece.model): its pieces and normalization rules.
//
// It does not use libsentencepiece: Debian's library contains a copy of protobuf 3.14 whose exported symbols clash with
// the protobuf 3.21 of the RPC library, and a process that loads both aborts. The format is sentencepiece_model.proto.
// Thread-safe while it is not modified.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "models/tokenizers/normalization_rules.h"
#include "models/tokenizers/prefix_index.h"

namespace tessera::models {

enum class PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct SentencePiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};

class SentencePieceModel {
 public:
  // Errors name the model as `name`. Returns InvalidArgument for data that is not a model or not a unigram model, and
  // for inconsistent pieces.
  static absl::StatusOr<SentencePieceModel> Parse(std::string_view bytes, const std::string& name);

  int64_t size() const { return static_cast<int64_t>(pieces_.size()); }
  const SentencePiece& piece(int64_t id) const { return pieces_[id]; }
  // Returns the id of the piece of any type with that text.
  std::optional<int64_t> Find(std::string_view text) const;

  int64_t unknown_id() const { return unknown_id_; }
  bool has_user_defined() const { return has_user_defined_; }
  // Whether characters without a piece are spelled as bytes instead of becoming the unknown piece.
  bool has_byte_fallback() const { return byte_fallback_; }
  void DropByteFallback() { byte_fallback_ = false; }
  int64_t byte_id(unsigned char byte) const { return byte_ids_[byte]; }
  const NormalizationRules& rules() const { return rules_; }
  bool treat_whitespace_as_suffix() const { return whitespace_as_suffix_; }
  float lowest_score() const { return lowest_score_; }    // of the normal pieces
  float highest_score() const { return highest_score_; }  // of the normal pieces, at least the smallest positive float

  // The pieces that text can consist of (not unknown, control or byte pieces).
  const PrefixIndex& text_pieces() const { return text_pieces_; }

 private:
  SentencePieceModel() = default;
  absl::Status Index(const std::string& name);

  std::vector<SentencePiece> pieces_;
  std::vector<int32_t> all_sorted_ids_;
  PrefixIndex text_pieces_;
  std::array<int64_t, 256> byte_ids_{};
  NormalizationRules rules_;
  int64_t unknown_id_ = 0;
  bool has_user_defined_ = false;
  bool byte_fallback_ = false;
  bool whitespace_as_suffix_ = false;
  float lowest_score_ = 0;
  float highest_score_ = 0;
};

}  // namespace tessera::models
