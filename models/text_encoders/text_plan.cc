#include "models/text_encoders/text_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"

namespace tessera::models {

std::string TextPlan::Key() const {
  const int shown_side = side ? static_cast<int>(*side) : -1;
  return absl::StrCat(before.size(), ":", before, after.size(), ":", after, has_frame ? "f" : "", kept, ",", dropped,
                      ",", static_cast<int>(padding), ",", shown_side, ",", absl::StrJoin(states, "."));
}

absl::StatusOr<PlannedText> PlanText(const Tokenizer& tokenizer, const TextPlan& plan, const std::string& prompt,
                                     int64_t max_length, const std::string& field, const std::string& encoder) {
  const int64_t length = max_length + plan.dropped;
  const std::string whole = plan.before + prompt + plan.after;
  ASSIGN_OR_RETURN(TokenIds encoded, plan.has_frame ? tokenizer.EncodeBare(whole, length, field)
                                                    : tokenizer.Encode(whole, length, field));
  const auto tokens = static_cast<int64_t>(encoded.ids.size());
  if (tokens < plan.kept + plan.dropped) {
    return absl::InvalidArgumentError(absl::StrCat("the ", field, " has ", tokens, " tokens for ", encoder,
                                                   " with its template, which alone must have ",
                                                   plan.kept + plan.dropped));
  }
  PlannedText text{.ids = std::move(encoded.ids), .tokens = tokens - plan.dropped, .dropped_from = plan.kept};
  if (encoded.truncated) {
    text.warnings.push_back(absl::StrCat("the ", field, " has ", encoded.tokens_before_truncation - plan.dropped,
                                         " tokens for ", encoder, " and was cut to ", max_length,
                                         "; not read: ", base::Quote(encoded.cut_text)));
  }
  text.mask.assign(text.ids.size(), 1);
  if (plan.padding == TextPadding::kNone) return text;
  const int64_t padding = length - tokens;
  const bool left =
      plan.side.value_or(tokenizer.pads_left() ? PaddingSide::kLeft : PaddingSide::kRight) == PaddingSide::kLeft;
  const auto pad = [&](std::vector<int64_t>& values, int64_t value) {
    values.insert(left ? values.begin() : values.end(), static_cast<size_t>(padding), value);
  };
  pad(text.ids, tokenizer.pad_id());
  pad(text.mask, 0);
  if (left) text.dropped_from += padding;
  return text;
}

absl::Status InsertPictures(PlannedText& text, int64_t picture_id, std::span<const int64_t> units,
                            const std::string& field) {
  if (std::ranges::count(text.ids, picture_id) != std::ssize(units)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", field, " contains ", kPictureToken, ", which stands for a picture; leave it out"));
  }
  std::vector<int64_t> ids;
  size_t picture = 0;
  for (const int64_t id : text.ids) {
    ids.insert(ids.end(), id == picture_id ? static_cast<size_t>(units[picture++]) : 1, id);
  }
  text.tokens += std::ssize(ids) - std::ssize(text.ids);
  text.ids = std::move(ids);
  text.mask.assign(text.ids.size(), 1);
  return absl::OkStatus();
}

}  // namespace tessera::models
