#include "server/fetch/input_check_message.h"

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <boost/json/value.hpp>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"
#include "base/text/utf8.h"

namespace tessera::server {
namespace {

constexpr size_t kEncodedAtOnce = 48 << 10;  // bytes of a picture; a multiple of 3, so that no padding is inside
constexpr char kDataUrl[] = "\"data:image/png;base64,";

std::string JsonText(absl::string_view text) {
  return boost::json::serialize(boost::json::value(boost::json::string(text.data(), text.size())));
}

std::string TextBeforePictures(const CheckedInput& input) {
  return absl::StrCat("{\"prompt\":", JsonText(absl::StrJoin(input.prompts, "\n")),
                      ",\"negative_prompt\":", JsonText(absl::StrJoin(input.negative_prompts, "\n")), ",\"images\":[");
}

// One line of at most `most` bytes, cut between characters.
std::string ShortLine(const std::string& text, size_t most) {
  size_t end = 0;
  while (end < text.size()) {
    const size_t next = base::Utf8SequenceLength(absl::string_view(text).substr(end));
    if (next == 0 || end + next > most) break;
    end += next;
  }
  return base::ReplaceControlCharacters(text.substr(0, end));
}

absl::Status WrongType(absl::string_view field, absl::string_view valid) {
  return absl::InvalidArgumentError(absl::StrCat("the answer's ", field, " is not ", valid));
}

}  // namespace

CheckedInputBody::CheckedInputBody(const CheckedInput& input)
    : before_(TextBeforePictures(input)), after_(absl::StrCat("],\"key\":", JsonText(input.tenant), "}")) {
  static constexpr char kNext[] = "\",";
  pieces_.push_back({.bytes = before_});
  for (size_t i = 0; i < input.pictures.size(); ++i) {
    if (i > 0) pieces_.push_back({.bytes = kNext});
    pieces_.push_back({.bytes = kDataUrl});
    pieces_.push_back({.bytes = input.pictures[i], .is_picture = true});
  }
  if (!input.pictures.empty()) pieces_.push_back({.bytes = "\""});
  pieces_.push_back({.bytes = after_});
  for (const Piece& piece : pieces_) {
    bytes_ += piece.is_picture ? (piece.bytes.size() + 2) / 3 * 4 : piece.bytes.size();
  }
}

size_t CheckedInputBody::Read(char* out, size_t most) {
  while (read_ == encoded_.size()) {
    if (piece_ == pieces_.size()) return 0;
    const Piece& piece = pieces_[piece_];
    const absl::string_view part = piece.bytes.substr(offset_, kEncodedAtOnce);
    encoded_ = piece.is_picture ? absl::Base64Escape(part) : std::string(part);
    read_ = 0;
    offset_ += part.size();
    if (offset_ == piece.bytes.size()) {
      ++piece_;
      offset_ = 0;
    }
  }
  const size_t count = std::min(most, encoded_.size() - read_);
  std::memcpy(out, encoded_.data() + read_, count);
  read_ += count;
  return count;
}

absl::StatusOr<Verdict> ParseVerdict(absl::string_view body) {
  ASSIGN_OR_RETURN(const base::Json json,
                   base::ParseJson(std::string_view(body.data(), body.size()), "the answer", kMaxVerdictBytes));
  if (!json.is_object()) return absl::InvalidArgumentError("the answer is not a JSON object");
  Verdict verdict;
  const base::Json* allowed = json.Find("allowed");
  if (allowed == nullptr || !allowed->AsBool().has_value()) return WrongType("allowed", "true or false");
  verdict.allowed = *allowed->AsBool();
  if (const base::Json* reason = json.Find("reason"); reason != nullptr && !reason->is_null()) {
    if (reason->AsString() == nullptr) return WrongType("reason", "a text");
    verdict.reason = ShortLine(*reason->AsString(), kMaxReasonBytes);
  }
  if (const base::Json* categories = json.Find("categories"); categories != nullptr && !categories->is_null()) {
    if (!categories->is_array()) return WrongType("categories", "a list of texts");
    for (const base::Json& category : categories->items()) {
      if (category.AsString() == nullptr) return WrongType("categories", "a list of texts");
      if (verdict.categories.size() == kMaxCategories) continue;
      verdict.categories.push_back(ShortLine(*category.AsString(), kMaxCategoryBytes));
    }
  }
  return verdict;
}

}  // namespace tessera::server
