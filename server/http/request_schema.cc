#include "server/http/request_schema.h"

#include <limits>

#include "server/api/request_fields.h"

namespace tessera::server {
namespace {

using boost::json::array;
using boost::json::object;

// Adds the bounds of a value; `schema` is that of the field, or of one item of its list.
void AddNumbers(const RequestField& field, object& schema) {
  const Bounds bounds = BoundsOf(field);
  if (bounds.high == std::numeric_limits<double>::infinity()) return;
  schema["minimum"] = static_cast<int64_t>(bounds.low);
  schema["maximum"] = static_cast<int64_t>(bounds.high);
}

const char* AddType(const RequestField& field, const std::string& usual, object& schema) {
  if (field.words != nullptr) {
    array words;
    for (const std::string& word : Words(field)) words.emplace_back(word);
    // If the API has no other default, empty is the same as absent.
    if (usual.empty()) words.emplace_back("");
    words.emplace_back(nullptr);
    schema["enum"] = std::move(words);
  } else if (const Bounds bounds = BoundsOf(field); bounds.high < std::numeric_limits<double>::infinity()) {
    schema["maxLength"] = static_cast<int64_t>(bounds.high);
  }
  return "string";
}
const char* AddType(const RequestField& field, const std::optional<std::string>&, object& schema) {
  return AddType(field, std::string(), schema);
}
const char* AddType(const RequestField&, const std::optional<bool>&, object&) { return "boolean"; }
const char* AddType(const RequestField&, const std::optional<uint64_t>&, object& schema) {
  schema["minimum"] = 0;
  schema["maximum"] = std::numeric_limits<uint64_t>::max();
  return "integer";
}
const char* AddType(const RequestField& field, const std::optional<int64_t>&, object& schema) {
  AddNumbers(field, schema);
  return "integer";
}
const char* AddType(const RequestField& field, const std::optional<double>&, object& schema) {
  AddNumbers(field, schema);
  return "number";
}
const char* AddType(const RequestField& field, const std::vector<int64_t>&, object& schema) {
  object item = {{"type", "integer"}};
  AddNumbers(field, item);
  schema["items"] = std::move(item);
  schema["uniqueItems"] = true;
  return "array";
}

// Of a field of an item of a list, with its default.
object ItemSchema(const base::Text&, const std::string&) { return {{"type", "string"}}; }
object ItemSchema(const base::Number& valid, double usual) {
  return {{"type", "number"},
          {"minimum", static_cast<int64_t>(valid.low)},
          {"maximum", static_cast<int64_t>(valid.high)},
          {"default", usual}};
}

template <base::Described Item>
const char* AddType(const RequestField& field, const std::vector<Item>&, object& schema) {
  object properties;
  array required;
  const Item usual;
  base::ForEachField(
      [&]<class F>(const F& item, const auto& value) {
        object property = ItemSchema(item.valid, value);
        if (*item.help != '\0') property["description"] = item.help;
        properties[item.name] = std::move(property);
        if constexpr (std::is_same_v<decltype(item.valid), base::Text>) {
          if (item.valid.is_required) required.emplace_back(item.name);
        }
      },
      usual);
  schema["items"] = object{{"type", "object"},
                           {"properties", std::move(properties)},
                           {"required", std::move(required)},
                           {"additionalProperties", false}};
  schema["maxItems"] = static_cast<int64_t>(BoundsOf(field).high);
  return "array";
}

object FieldSchema(const RequestField& field) {
  const bool required = absl::string_view(field.id) == "prompt";
  object schema = {{"type", nullptr}};
  const char* type = nullptr;
  const ImageRequest usual;
  VisitValue(field, usual, [&](const auto& value) { type = AddType(field, value, schema); });
  if (required) {
    schema["type"] = type;
    schema["minLength"] = 1;
  } else {
    schema["type"] = array{type, "null"};
  }
  if (field.usual != nullptr) schema["default"] = boost::json::parse(field.usual);
  const char* description = field.description != nullptr ? field.description : field.help;
  if (description != nullptr) schema["description"] = description;
  const bool is_switch = std::holds_alternative<std::optional<bool> GenerationRequest::*>(field.member);
  if (field.option != nullptr) schema["x-option"] = std::string(is_switch ? "--" : "") + field.option;
  // The prompts are separate lines.
  const bool line = required || absl::string_view(field.id) == "negative_prompt";
  if (IsOfGeneration(field) && !line) schema["x-metadata-key"] = MetadataKey(field);
  if (field.read_with != nullptr) schema["x-read-with"] = field.read_with;
  return schema;
}

}  // namespace

object RequestSchema(BodyKind kind) {
  object properties;
  for (const RequestField& field : kRequestFields) {
    if (!field.half) properties[ApiName(field)] = FieldSchema(field);
  }
  if (kind == BodyKind::kGeneration) {
    properties["response_format"] = {
        {"type", {"string", "null"}}, {"enum", {"b64_json", "url", nullptr}}, {"default", "b64_json"}};
    properties["stream"] = {
        {"type", {"boolean", "null"}}, {"default", false}, {"description", "Answer with server-sent events."}};
  }
  // PNG is lossless, so its only valid compression is 100.
  array compression = {object{{"properties", object{{"output_compression", object{{"enum", array{100, nullptr}}}}}}},
                       object{{"properties", object{{"output_format", object{{"enum", array{"jpeg", "webp"}}}}}},
                              {"required", array{"output_format"}}}};
  return {{"type", "object"},
          {"anyOf", std::move(compression)},
          {"properties", std::move(properties)},
          {"required", array{"prompt"}},
          {"additionalProperties", false}};
}

}  // namespace tessera::server
