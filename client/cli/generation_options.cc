#include "client/cli/generation_options.h"

#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/random_bytes.h"
#include "base/status_macros.h"
#include "client/cli/option_text.h"

namespace tessera::client {
namespace {

absl::Status Read(const std::string&, const std::string& text, std::string& value) {
  value = text;
  return absl::OkStatus();
}

absl::Status Read(const std::string&, const std::string& text, std::optional<std::string>& value) {
  value = text;
  return absl::OkStatus();
}

absl::Status Read(const std::string& label, const std::string& text, std::optional<int64_t>& value) {
  ASSIGN_OR_RETURN(value, ParseInteger(label, text));
  return absl::OkStatus();
}

absl::Status Read(const std::string& label, const std::string& text, std::optional<double>& value) {
  ASSIGN_OR_RETURN(value, ParseNumber(label, text));
  return absl::OkStatus();
}

absl::Status Read(const std::string& label, const std::string& text, std::vector<int64_t>& value) {
  ASSIGN_OR_RETURN(value, ParseIntegers(label, text));
  return absl::OkStatus();
}

template <base::Described Item>
absl::Status Read(const std::string& label, const std::string&, std::vector<Item>&) {
  return absl::InternalError(absl::StrCat(label, " is a list of options"));
}

absl::Status Read(const std::string& label, const std::string&, std::optional<bool>&) {
  return absl::InternalError(absl::StrCat(label, " is a switch"));
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
std::string TypeOf(const server::RequestField& field) {
  if (field.words != nullptr) return absl::StrReplaceAll(field.words, {{" ", "|"}});
  if (field.type != nullptr) return field.type;
  if (std::holds_alternative<std::vector<int64_t> server::GenerationRequest::*>(field.member)) return "N,N";
  if (std::holds_alternative<std::optional<double> server::GenerationRequest::*>(field.member)) return "X";
  const bool text = std::holds_alternative<std::string server::GenerationRequest::*>(field.member) ||
                    std::holds_alternative<std::optional<std::string> server::GenerationRequest::*>(field.member);
  return text ? "TEXT" : "N";
}

// Some options set two fields, or a field that the request holds in another form.
absl::Status ReadField(const server::RequestField& field, const std::string& text, server::GenerationRequest& request) {
  const absl::string_view id = field.id;
  if (id == "size") return ReadSize("size", text, request.width, request.height);
  if (id == "original_width") return ReadSize("original size", text, request.original_width, request.original_height);
  if (id == "crop_top") return ReadCorner(text, request.crop_top, request.crop_left);
  if (id == "count") {
    ASSIGN_OR_RETURN(request.count, ParseInteger(id, text));
    return absl::OkStatus();
  }
  if (id == "seed") {
    ASSIGN_OR_RETURN(request.seed, ParseSeed(text));
    return absl::OkStatus();
  }
  absl::Status status;
  server::VisitValue(field, request, [&](auto& value) { status = Read(server::Label(field), text, value); });
  return status;
}

bool IsListOfStructs(const server::RequestField& field) {
  return std::visit([]<class Value, class Request>(Value Request::*) { return server::kIsListOfStructs<Value>; },
                    field.member);
}

// Parses NAME[:NUMBER], the fields of the item in order. A colon not followed by a number belongs to the name.
template <base::Described Item>
void ParseItems(const std::vector<std::string>& texts, std::vector<Item>& items) {
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
  for (const server::RequestField& field : server::kRequestFields) {
    if (field.option == nullptr) continue;
    BeginGroup(app, field.read_with == nullptr ? "Image" : "Of some models");
    if (std::holds_alternative<std::optional<bool> server::GenerationRequest::*>(field.member)) {
      AddSwitch(app, field.option, field.help, options.switches[field.id]);
      continue;
    }
    if (IsListOfStructs(field)) {
      AddTexts(app, {.names = field.option, .help = field.help, .type = field.type}, options.lists[field.id]);
      continue;
    }
    // A prompt may be empty, which differs from no prompt.
    const bool positional = field.option[0] != '-';
    const bool may_be_empty =
        positional || std::holds_alternative<std::optional<std::string> server::GenerationRequest::*>(field.member);
    const std::string type = TypeOf(field);
    AddText(app,
            {.names = field.option,
             .help = field.help,
             .type = type.c_str(),
             .required = positional,
             .may_be_empty = may_be_empty,
             .excludes = field.half ? "--size" : nullptr},
            options.texts[field.id]);
  }
}

server::AdapterRequest ParseAdapter(const std::string& text) {
  std::vector<server::AdapterRequest> adapters;
  ParseItems({text}, adapters);
  return adapters[0];
}

absl::StatusOr<server::GenerationRequest> RequestOf(const GenerationOptions& options) {
  server::GenerationRequest request;
  absl::Status status;
  for (const server::RequestField& field : server::kRequestFields) {
    if (const auto text = options.texts.find(field.id); text != options.texts.end() && text->second.has_value()) {
      status.Update(ReadField(field, *text->second, request));
    }
    if (const auto on = options.switches.find(field.id); on != options.switches.end()) {
      server::VisitValue(field, request, [&](auto& value) { server::CopyValue(on->second, value); });
    }
    if (const auto typed = options.lists.find(field.id); typed != options.lists.end()) {
      server::VisitValue(field, request, [&](auto& items) { ParseItems(typed->second, items); });
    }
  }
  RETURN_IF_ERROR(status);
  if (options.Typed("seed").empty()) request.seed = base::RandomNumber<uint32_t>();  // small enough to retype
  return request;
}

}  // namespace tessera::client
