#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/files/sha256.h"
#include "base/macros/planted.h"
#include "server/api/image_request.h"
#include "server/api/request_fields.h"

namespace tessera::server {
namespace {

// The fields of version 0.1.0 in the order in which it digested them. This list never grows.
constexpr char kFirstFields[] =
    "model seed count size quality output_format output_compression background style moderation user"
    " partial_images priority deadline_ms prompt negative_prompt prompt_2 prompt_3 negative_prompt_2"
    " negative_prompt_3 steps guidance_scale sampler noise clean_caption resolution_binning"
    " max_sequence_length true_cfg_scale guidance_rescale clip_skip skip_layers skip_layer_scale"
    " skip_layer_start skip_layer_stop original_width original_height crop_top crop_left";

// A text that differs whenever a field differs: every value is preceded by its length.
class CanonicalText {
 public:
  template <class Value>
  void Add(const Value& value) {
    if constexpr (base::kIsOptional<Value>) {
      value.has_value() ? Add(*value) : AddPart("-");
    } else if constexpr (std::is_same_v<Value, std::vector<int64_t>>) {
      AddText(absl::StrJoin(value, ","));
    } else if constexpr (base::kIsList<Value>) {
      AddText(absl::StrCat(value.size()));
      for (const auto& item : value) base::ForEachField([this](const auto&, const auto& part) { Add(part); }, item);
    } else if constexpr (std::is_same_v<Value, bool>) {
      AddText(value ? "true" : "false");
    } else if constexpr (std::is_same_v<Value, double>) {
      // Use all bits: different numbers may print alike.
      const double number = value == 0 ? 0 : value;
      AddText({reinterpret_cast<const char*>(&number), sizeof(number)});
    } else {
      AddText(absl::StrCat(value));
    }
  }

  const std::string& text() const { return text_; }

 private:
  void AddText(absl::string_view value) { AddPart(absl::StrCat(value.size(), ":", value)); }
  void AddPart(absl::string_view part) { absl::StrAppend(&text_, part, ";"); }

  std::string text_;
};

}  // namespace

std::string RequestDigest(const ImageRequest& request) {
  CanonicalText canonical;
  const std::vector<std::string> first = absl::StrSplit(kFirstFields, ' ');
  for (const std::string& id : first) {
    if (base::Planted("digest_misses_a_field") && id == "seed") continue;
    VisitField(id, request, [&](const auto&, const auto& value) { canonical.Add(value); });
  }
  // Later fields follow by name, and only if they are given, so that requests without them keep their digests.
  base::ForEachField(
      [&](const auto& field, const auto& value) {
        if (field.facts.half || !IsGiven(value) || std::ranges::count(first, field.name) > 0) return;
        canonical.Add(ApiName(field.facts));
        canonical.Add(value);
      },
      request);
  return absl::BytesToHexString(base::Sha256Of(canonical.text()));
}

}  // namespace tessera::server
