#include "models/tokenizers/sentencepiece_model.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"

namespace tessera::models {
namespace {

constexpr int64_t kUnigram = 1;
constexpr size_t kMostPieces = 1 << 22;

// Reads the fields of one protobuf message.
class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : rest_(bytes) {}

  // Returns false at the end, and also if the bytes are malformed; then ok() is false.
  bool Next() {
    if (rest_.empty()) return false;
    const uint64_t tag = Varint();
    field_ = static_cast<int64_t>(tag >> 3);
    switch (tag & 7) {
      case 0:
        number_ = Varint();
        break;
      case 1:
        bytes_ = Take(8);
        break;
      case 2:
        bytes_ = Take(Varint());
        break;
      case 5:
        bytes_ = Take(4);
        break;
      default:
        ok_ = false;
    }
    wire_type_ = static_cast<int>(tag & 7);
    return ok_;
  }

  bool ok() const { return ok_; }
  bool IsNumber(int64_t field) const { return field_ == field && wire_type_ == 0; }
  bool IsBytes(int64_t field) const { return field_ == field && wire_type_ == 2; }
  bool IsFloat(int64_t field) const { return field_ == field && wire_type_ == 5; }
  int64_t number() const { return static_cast<int64_t>(number_); }
  std::string_view bytes() const { return bytes_; }
  float real() const {
    float value;
    std::memcpy(&value, bytes_.data(), sizeof(value));
    return value;
  }

 private:
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) break;
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }

  std::string_view Take(uint64_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_;
  bool ok_ = true;
  int64_t field_ = 0;
  int wire_type_ = 0;
  uint64_t number_ = 0;
  std::string_view bytes_;
};

bool ReadPiece(std::string_view bytes, SentencePiece* piece) {
  MessageReader reader(bytes);
  while (reader.Next()) {
    if (reader.IsBytes(1)) piece->text = reader.bytes();
    if (reader.IsFloat(2)) piece->score = reader.real();
    if (reader.IsNumber(3)) {
      if (reader.number() < 1 || reader.number() > 6) return false;
      piece->type = static_cast<PieceType>(reader.number());
    }
  }
  return reader.ok() && !piece->text.empty() && std::isfinite(piece->score);
}

struct TrainerSpec {
  int64_t model_type = kUnigram;
  bool whitespace_as_suffix = false;
  bool byte_fallback = false;
};

bool ReadTrainerSpec(std::string_view bytes, TrainerSpec* spec) {
  MessageReader reader(bytes);
  while (reader.Next()) {
    if (reader.IsNumber(3)) spec->model_type = reader.number();
    if (reader.IsNumber(24)) spec->whitespace_as_suffix = reader.number() != 0;
    if (reader.IsNumber(35)) spec->byte_fallback = reader.number() != 0;
  }
  return reader.ok();
}

bool ReadNormalizerSpec(std::string_view bytes, NormalizationRules* rules) {
  MessageReader reader(bytes);
  while (reader.Next()) {
    if (reader.IsBytes(2) && !rules->ReadCharsMap(reader.bytes())) return false;
    if (reader.IsNumber(3)) rules->add_dummy_prefix = reader.number() != 0;
    if (reader.IsNumber(4)) rules->remove_extra_whitespaces = reader.number() != 0;
    if (reader.IsNumber(5)) rules->escape_whitespaces = reader.number() != 0;
  }
  return reader.ok();
}

bool IsText(PieceType type) {
  return type == PieceType::kNormal || type == PieceType::kUserDefined || type == PieceType::kUnused;
}

}  // namespace

absl::StatusOr<SentencePieceModel> SentencePieceModel::Parse(std::string_view bytes, const std::string& name) {
  const auto damaged = [&name] {
    return absl::InvalidArgumentError(absl::StrCat(name, " is not a sentencepiece model, or it is damaged"));
  };
  SentencePieceModel model;
  TrainerSpec trainer;
  MessageReader reader(bytes);
  while (reader.Next()) {
    if (reader.IsBytes(1)) {
      if (model.pieces_.size() == kMostPieces) return damaged();
      if (!ReadPiece(reader.bytes(), &model.pieces_.emplace_back())) return damaged();
    }
    if (reader.IsBytes(2) && !ReadTrainerSpec(reader.bytes(), &trainer)) return damaged();
    if (reader.IsBytes(3) && !ReadNormalizerSpec(reader.bytes(), &model.rules_)) return damaged();
  }
  if (!reader.ok() || model.pieces_.empty()) return damaged();
  if (trainer.model_type != kUnigram) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is a sentencepiece model of type ", trainer.model_type, "; T5 has a unigram model (1)"));
  }
  model.byte_fallback_ = trainer.byte_fallback;
  model.whitespace_as_suffix_ = trainer.whitespace_as_suffix;
  RETURN_IF_ERROR(model.Index(name));
  return model;
}

absl::Status SentencePieceModel::Index(const std::string& name) {
  const auto by_text = [this](int32_t a, int32_t b) { return pieces_[a].text < pieces_[b].text; };
  all_sorted_ids_.resize(pieces_.size());
  std::iota(all_sorted_ids_.begin(), all_sorted_ids_.end(), 0);
  std::sort(all_sorted_ids_.begin(), all_sorted_ids_.end(), by_text);
  for (size_t i = 1; i < all_sorted_ids_.size(); ++i) {
    const std::string& text = pieces_[all_sorted_ids_[i]].text;
    if (text == pieces_[all_sorted_ids_[i - 1]].text) {
      return absl::InvalidArgumentError(absl::StrCat(name, " has the piece ", base::Quote(text), " twice"));
    }
  }
  std::vector<std::pair<std::string, int32_t>> texts;
  for (const int32_t id : all_sorted_ids_) {
    if (IsText(pieces_[id].type)) texts.emplace_back(pieces_[id].text, id);
  }
  text_pieces_ = PrefixIndex(std::move(texts));

  int64_t unknown = 0;
  lowest_score_ = FLT_MAX;
  highest_score_ = FLT_MIN;
  for (int64_t id = 0; id < size(); ++id) {
    has_user_defined_ = has_user_defined_ || pieces_[id].type == PieceType::kUserDefined;
    if (pieces_[id].type == PieceType::kUnknown) {
      unknown_id_ = id;
      ++unknown;
    } else if (pieces_[id].type == PieceType::kNormal) {
      lowest_score_ = std::min(lowest_score_, pieces_[id].score);
      highest_score_ = std::max(highest_score_, pieces_[id].score);
    }
  }
  if (unknown != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has ", unknown, " pieces for unknown text; a model has exactly 1"));
  }
  if (!byte_fallback_) return absl::OkStatus();
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text = absl::StrFormat("<0x%02X>", byte);
    const std::optional<int64_t> id = Find(text);
    if (!id || pieces_[*id].type != PieceType::kByte) {
      return absl::InvalidArgumentError(absl::StrCat(name, " spells unknown text as bytes but has no piece ", text));
    }
    byte_ids_[byte] = *id;
  }
  return absl::OkStatus();
}

std::optional<int64_t> SentencePieceModel::Find(std::string_view text) const {
  const auto found = std::lower_bound(all_sorted_ids_.begin(), all_sorted_ids_.end(), text,
                                      [this](int32_t id, std::string_view key) { return pieces_[id].text < key; });
  if (found == all_sorted_ids_.end() || pieces_[*found].text != text) return std::nullopt;
  return *found;
}

}  // namespace tessera::models
