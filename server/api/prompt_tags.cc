#include "server/api/prompt_tags.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/fields/field_error.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"
#include "base/text/number_text.h"
#include "control/parameters/adapter_use.h"
#include "server/api/request_values.h"

namespace tessera::server {
namespace {

constexpr size_t kMostShownAdapters = 32;
constexpr char kTagForm[] = "valid tags are <lora:NAME> and <lora:NAME:SCALE>, such as <lora:style:0.8>";

bool IsBlank(char c) { return absl::ascii_isspace(static_cast<unsigned char>(c)); }

// Where a tag is in a text; its end is that of the text if nothing closes it.
struct TagPlace {
  size_t begin = 0, end = 0;
  absl::string_view content;  // between the brackets, after the word lora
  bool is_closed = false;
};

// Returns the first tag, also a malformed one: an opening bracket and the word lora, in any case and with any blanks.
std::optional<TagPlace> FindTag(absl::string_view text) {
  for (size_t begin = text.find('<'); begin != text.npos; begin = text.find('<', begin + 1)) {
    absl::string_view rest = absl::StripLeadingAsciiWhitespace(text.substr(begin + 1));
    if (!absl::StartsWithIgnoreCase(rest, "lora")) continue;
    rest.remove_prefix(4);
    const bool longer = !rest.empty() && (absl::ascii_isalnum(static_cast<unsigned char>(rest[0])) || rest[0] == '_' ||
                                          rest[0] == '-' || static_cast<unsigned char>(rest[0]) >= 0x80);
    if (longer) continue;  // a word such as <lorax>
    const size_t close = rest.find('>');
    const size_t content = static_cast<size_t>(rest.data() - text.data());
    return TagPlace{.begin = begin,
                    .end = close == rest.npos ? text.size() : content + close + 1,
                    .content = rest.substr(0, close),
                    .is_closed = close != rest.npos};
  }
  return std::nullopt;
}

absl::Status PromptError(absl::string_view tag, absl::string_view rest) {
  return base::ErrorOfField("prompt", absl::StrCat(" has ", base::QuotedValue(tag), rest));
}

absl::StatusOr<AdapterRequest> ParseTag(absl::string_view tag, const TagPlace& place) {
  absl::string_view content = absl::StripAsciiWhitespace(place.content);
  const bool begins = absl::ConsumePrefix(&content, ":");
  const std::vector<absl::string_view> parts = absl::StrSplit(content, ':');
  AdapterRequest adapter = {.name = std::string(absl::StripAsciiWhitespace(parts[0]))};
  if (!place.is_closed || !begins || adapter.name.empty() || parts.size() > 2) {
    return PromptError(tag, absl::StrCat(", which is malformed; ", kTagForm));
  }
  if (parts.size() == 1) return adapter;
  const absl::string_view typed = absl::StripAsciiWhitespace(parts[1]);
  const bool is_number = absl::SimpleAtod(typed, &adapter.scale);
  if (is_number && adapter.scale >= control::kAdapterScales.low && adapter.scale <= control::kAdapterScales.high) {
    return adapter;
  }
  return PromptError(tag, absl::StrCat(": its scale is ", base::QuotedValue(typed), "; it must be a number from ",
                                       base::NumberText(control::kAdapterScales.low), " to ",
                                       base::NumberText(control::kAdapterScales.high)));
}

// The error for an adapter that is not among those that tags may name.
absl::Status UnknownAdapter(absl::string_view tag, const std::string& name, const AdapterNames& adapters) {
  if (adapters.empty()) {
    return PromptError(tag, absl::StrCat(": the adapter ", base::QuotedValue(name),
                                         " is unknown; no adapters are known here, so leave the tag out"));
  }
  std::vector<std::string> names;
  for (const auto& [known, lora] : adapters) names.push_back(known);
  if (names.size() <= kMostShownAdapters) {
    return PromptError(tag, absl::StrCat(": the adapter", base::ProblemOfName(name, names)));
  }
  const std::string nearest = base::NearestName(name, names);
  return PromptError(
      tag, absl::StrCat(": the adapter ", base::QuotedValue(name), " is unknown; GET /v1/models lists ", names.size(),
                        " valid names", nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?")));
}

// Cuts the tag out. Of blanks on both sides, or at an end of the text, one side's go with it.
std::string Without(absl::string_view text, const TagPlace& place) {
  absl::string_view before = text.substr(0, place.begin), after = text.substr(place.end);
  if (before.empty() || IsBlank(before.back())) after = absl::StripLeadingAsciiWhitespace(after);
  if (after.empty()) before = absl::StripTrailingAsciiWhitespace(before);
  return absl::StrCat(before, after);
}

}  // namespace

absl::Status TakePromptTags(const AdapterNames& adapters, ImageRequest& request) {
  const std::pair<const char*, absl::string_view> others[] = {
      {"negative_prompt", request.negative_prompt.has_value() ? *request.negative_prompt : absl::string_view()},
      {"prompt_2", request.prompt_2},
      {"prompt_3", request.prompt_3},
      {"negative_prompt_2", request.negative_prompt_2},
      {"negative_prompt_3", request.negative_prompt_3}};
  for (const auto& [id, text] : others) {
    const std::optional<TagPlace> place = FindTag(text);
    if (!place.has_value()) continue;
    return base::ErrorOfField(
        id, absl::StrCat(" has ", base::QuotedValue(text.substr(place->begin, place->end - place->begin)),
                         "; an adapter changes the whole image, so only the prompt may have its tag"));
  }
  std::vector<std::string> tagged;
  while (const std::optional<TagPlace> place = FindTag(request.prompt)) {
    const std::string tag = request.prompt.substr(place->begin, place->end - place->begin);
    ASSIGN_OR_RETURN(AdapterRequest adapter, ParseTag(tag, *place));
    const auto known = adapters.find(adapter.name);
    if (known == adapters.end()) return UnknownAdapter(tag, adapter.name, adapters);
    const auto given = std::ranges::find(request.loras, known->second, &AdapterRequest::name);
    if (given == request.loras.end()) {
      request.loras.push_back({.name = known->second, .scale = adapter.scale});
    } else if (std::ranges::count(tagged, adapter.name) > 0 || given->scale != 1) {
      return PromptError(tag, absl::StrCat(": the adapter ", base::QuotedValue(adapter.name), " already has the scale ",
                                           base::NumberText(given->scale), "; give it one scale, in one place"));
    } else {
      given->scale = adapter.scale;
    }
    tagged.push_back(adapter.name);
    request.prompt = Without(request.prompt, *place);
  }
  return absl::OkStatus();
}

}  // namespace tessera::server
