#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/planted.h"
#include "base/sha256.h"
#include "server/api/image_request.h"

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
  void Add(const std::string& value) { absl::StrAppend(&text_, value.size(), ":", value, ";"); }
  void Add(const std::optional<std::string>& value) { value ? Add(*value) : AddNothing(); }
  void Add(const std::optional<int64_t>& value) { value ? Add(absl::StrCat(*value)) : AddNothing(); }
  void Add(const std::vector<int64_t>& values) { Add(absl::StrJoin(values, ",")); }
  template <base::Described Item>
  void Add(const std::vector<Item>& items) {
    Add(absl::StrCat(items.size()));
    for (const Item& item : items)
      base::ForEachField([this](const auto&, const auto& value) { AddValue(value); }, item);
  }
  void Add(const std::optional<uint64_t>& value) { value ? Add(absl::StrCat(*value)) : AddNothing(); }
  void Add(const std::optional<bool>& value) { value ? Add(std::string(*value ? "true" : "false")) : AddNothing(); }
  void Add(const std::optional<double>& value) {
    // Use all bits: different numbers may print alike.
    if (!value) return AddNothing();
    const double number = *value == 0 ? 0 : *value;
    Add(std::string(reinterpret_cast<const char*>(&number), sizeof(number)));
  }

  const std::string& text() const { return text_; }

 private:
  // A value that is always present is digested like an optional one.
  void AddValue(const std::string& value) { Add(value); }
  template <class Value>
  void AddValue(const Value& value) {
    Add(std::optional<Value>(value));
  }
  void AddNothing() { absl::StrAppend(&text_, "-;"); }

  std::string text_;
};

}  // namespace

std::string RequestDigest(const ImageRequest& request) {
  CanonicalText canonical;
  const auto add = [&](const RequestField& field) {
    VisitValue(field, request, [&](const auto& value) { canonical.Add(value); });
  };
  const std::vector<std::string> first = absl::StrSplit(kFirstFields, ' ');
  for (const std::string& id : first) {
    if (base::Planted("digest_misses_a_field") && id == "seed") continue;
    add(*FindField(id));
  }
  // Later fields follow by name, and only if they are given, so that requests without them keep their digests.
  for (const RequestField& field : kRequestFields) {
    if (field.half || std::ranges::count(first, field.id) > 0) continue;
    VisitValue(field, request, [&](const auto& value) {
      if (value == std::decay_t<decltype(value)>()) return;
      canonical.Add(ApiName(field));
      canonical.Add(value);
    });
  }
  return absl::BytesToHexString(base::Sha256Of(canonical.text()));
}

}  // namespace tessera::server
