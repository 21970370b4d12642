#include "client/cli/generation_options.h"

#include <optional>
#include <type_traits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/macros/status_macros.h"
#include "base/text/random_bytes.h"
#include "client/cli/option_text.h"
#include "server/api/request_fields.h"

namespace tessera::client {
namespace {

template <class Value>
absl::Status Read(const std::string& label, const std::string& text, Value& value) {
  if constexpr (std::is_same_v<Value, std::optional<uint64_t>>) {
    ASSIGN_OR_RETURN(value, ParseSeed(text));
  } else if constexpr (base::kIsOptional<Value>) {
    return Read(label, text, value.emplace());
  } else if constexpr (std::is_same_v<Value, std::string>) {
    value = text;
  } else if constexpr (std::is_same_v<Value, int64_t>) {
    ASSIGN_OR_RETURN(value, ParseInteger(label, text));
  } else if constexpr (std::is_same_v<Value, double>) {
    ASSIGN_OR_RETURN(value, ParseNumber(label, text));
  } else if constexpr (std::is_same_v<Value, std::vector<int64_t>>) {
    ASSIGN_OR_RETURN(value, ParseIntegers(label, text));
  } else {
    return absl::InternalError(absl::StrCat(label, " is not one text"));
  }
  return absl::OkStatus();
}

absl::Status ReadSize(const std::string& label, const std::string& text, std::optional<int64_t>& width,
                      std::optional<int64_t>& height) {
  ASSIGN_OR_RETURN(const TypedSize size, ParseSize(label, text));
  width = size.width;
  height = size.height;
  return absl::OkStatus();
}

absl::Status ReadCorner(const std::string& text, std::optional<int64_t>& top, std::optional<int64_t>& left) {
  const absl::StatusOr<std::vector<int64_t>> corner = ParseIntegers("crop", text);
  if (!corner.ok() || corner->size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("crop is '", text, "'; valid values are TOP,LEFT in pixels, such as 0,64"));
  }
  top = (*corner)[0];
  left = (*corner)[1];
  return absl::OkStatus();
}

// Returns the placeholder that the help shows for a value.
template <class Valid>
std::string TypeOf(const server::RequestFacts& facts, const Valid&) {
  if (facts.words != nullptr) return absl::StrReplaceAll(facts.words, {{" ", "|"}});
  if (facts.type != nullptr) return facts.type;
  if (std::is_same_v<Valid, base::List<base::Integer>>) return "N,N";
  if (std::is_same_v<Valid, base::Number>) return "X";
  return std::is_same_v<Valid, base::Text> ? "TEXT" : "N";
}

// Some options set two fields.
template <class Value>
absl::Status ReadField(const server::RequestFacts& facts, const std::string& text, Value& value,
                       server::ImageRequest& request) {
  const absl::string_view id = facts.id;
  if (id == "size") return ReadSize("size", text, request.width, request.height);
  if (id == "original_width") return ReadSize("original size", text, request.original_width, request.original_height);
  if (id == "crop_top") return ReadCorner(text, request.crop_top, request.crop_left);
  return Read(server::Label(facts), text, value);
}

// Parses NAME[:SCALE]. A colon not followed by a number belongs to the name.
void ParseItems(const std::vector<std::string>& texts, std::vector<server::AdapterRequest>& items) {
  for (const std::string& text : texts) {
    auto& [name, number] = items.emplace_back();
    const size_t colon = text.rfind(':');
    double typed;
    const bool has_number =
        colon != std::string::npos && colon != 0 && absl::SimpleAtod(text.substr(colon + 1), &typed);
    if (has_number) number = typed;
    name = text.substr(0, has_number ? colon : text.size());
  }
}
template <class Value>
void ParseItems(const std::vector<std::string>&, Value&) {}

}  // namespace

std::string GenerationOptions::Typed(const std::string& id) const {
  const auto typed = texts.find(id);
  return typed == texts.end() ? "" : typed->second.value_or("");
}

void AddGenerationOptions(CLI::App& app, GenerationOptions& options) {
  base::ForEachFieldOf<server::ImageRequest>(
      [&]<class Value, class Valid>(const server::RequestField<Value, Valid>& field) {
        const server::RequestFacts& facts = field.facts;
        if (facts.option == nullptr) return;
        BeginGroup(app, facts.read_with == nullptr ? "Image" : "Of some models");
        if constexpr (std::is_same_v<Valid, base::Flag>) {
          AddSwitch(app, facts.option, facts.help, options.switches[facts.id]);
        } else if constexpr (std::is_same_v<Valid, base::List<base::Nested>>) {
          AddTexts(app, {.names = facts.option, .help = facts.help, .type = facts.type}, options.lists[facts.id]);
        } else {
          // A prompt may be empty, which differs from no prompt.
          const bool positional = facts.option[0] != '-';
          const std::string type = TypeOf(facts, field.valid);
          AddText(app,
                  {.names = facts.option,
                   .help = facts.help,
                   .type = type.c_str(),
                   .required = positional,
                   .may_be_empty = positional || std::is_same_v<Value, std::optional<std::string>>,
                   .excludes = facts.half ? "--size" : nullptr},
                  options.texts[facts.id]);
        }
      });
}

server::AdapterRequest ParseAdapter(const std::string& text) {
  std::vector<server::AdapterRequest> adapters;
  ParseItems({text}, adapters);
  return adapters[0];
}

absl::StatusOr<server::ImageRequest> RequestOf(const GenerationOptions& options) {
  server::ImageRequest request;
  absl::Status status;
  base::ForEachField(
      [&](const auto& field, auto& value) {
        if (const auto text = options.texts.find(field.name); text != options.texts.end() && text->second.has_value()) {
          status.Update(ReadField(field.facts, *text->second, value, request));
        }
        if (const auto on = options.switches.find(field.name); on != options.switches.end()) {
          server::CopyValue(on->second, value);
        }
        if (const auto typed = options.lists.find(field.name); typed != options.lists.end()) {
          ParseItems(typed->second, value);
        }
      },
      request);
  RETURN_IF_ERROR(status);
  if (!request.seed.has_value()) request.seed = base::RandomNumber<uint32_t>();  // small enough to retype
  return request;
}

}  // namespace tessera::client
