#include "server/http/request_schema.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "server/api/request_fields.h"

namespace tessera::server {
namespace {

using boost::json::array;
using boost::json::object;

template <class Value, class Valid>
const char* AddType(const RequestFacts& facts, const Value& usual, const Valid& valid, object& schema);

// Returns the schema of an item of a list, with the default of each field.
template <base::Described Item>
object ItemSchema() {
  object properties;
  array required;
  const Item usual;
  base::ForEachField(
      [&](const auto& field, const auto& value) {
        object property = {{"type", nullptr}};
        property["type"] = AddType({}, value, field.valid, property);
        if (base::IsRequired(field.valid)) {
          required.emplace_back(field.name);
        } else {
          property["default"] = value;
        }
        if (*field.help != '\0') property["description"] = field.help;
        properties[field.name] = std::move(property);
      },
      usual);
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", std::move(required)},
          {"additionalProperties", false}};
}

// Adds what is valid. Returns the name of the type.
template <class Value, class Valid>
const char* AddType(const RequestFacts& facts, const Value& usual, const Valid& valid, object& schema) {
  if constexpr (std::is_same_v<Valid, base::Text>) {
    if (facts.words != nullptr) {
      array words;
      for (const std::string& word : Words(facts)) words.emplace_back(word);
      // If the API has no other default, empty is the same as absent.
      if (!IsGiven(usual)) words.emplace_back("");
      words.emplace_back(nullptr);
      schema["enum"] = std::move(words);
    } else if (valid.most_bytes < base::Text().most_bytes) {
      schema["maxLength"] = valid.most_bytes;
    }
    return "string";
  } else if constexpr (std::is_same_v<Valid, base::Bytes>) {
    schema["contentEncoding"] = "base64";
    return "string";
  } else if constexpr (std::is_same_v<Valid, base::Flag>) {
    return "boolean";
  } else if constexpr (std::is_same_v<Valid, base::Integer>) {
    schema["minimum"] = valid.low;
    schema["maximum"] = valid.high;
    // -1 stands for any seed.
    if constexpr (std::is_same_v<Value, std::optional<uint64_t>>) schema["minimum"] = -1;
    return "integer";
  } else if constexpr (std::is_same_v<Valid, base::Number>) {
    schema["minimum"] = static_cast<int64_t>(valid.low);
    schema["maximum"] = static_cast<int64_t>(valid.high);
    return "number";
  } else if constexpr (std::is_same_v<Valid, base::List<base::Nested>>) {
    if (valid.most == 1) {
      object item = ItemSchema<typename Value::value_type>();
      item.erase("type");
      for (auto& [name, value] : item) schema[name] = std::move(value);
      return "object";
    }
    schema["items"] = ItemSchema<typename Value::value_type>();
    schema["maxItems"] = valid.most;
    return "array";
  } else {
    object item = {{"type", nullptr}};
    item["type"] = AddType({}, typename Value::value_type(), valid.each, item);
    schema["items"] = std::move(item);
    schema["uniqueItems"] = valid.distinct;
    return "array";
  }
}

// Whether the text in a picture has a pair for the field, whatever the request's number of images is. The prompts are
// separate lines, and each image has its own seed.
bool HasPair(const RequestFacts& facts) {
  const absl::string_view id = facts.id;
  return facts.is_parameter && id != "prompt" && id != "negative_prompt" && id != "seed";
}

template <class Field, class Value>
object FieldSchema(const Field& field, const Value& usual) {
  const RequestFacts& facts = field.facts;
  const bool required = absl::string_view(facts.id) == "prompt";
  object schema = {{"type", nullptr}};
  const char* type = AddType(facts, usual, field.valid, schema);
  if (required) {
    schema["type"] = type;
    schema["minLength"] = 1;
  } else {
    schema["type"] = array{type, "null"};
  }
  if (facts.usual != nullptr) schema["default"] = boost::json::parse(facts.usual);
  const char* description = facts.description != nullptr ? facts.description : facts.help;
  if (description != nullptr) schema["description"] = description;
  const bool is_switch = std::is_same_v<decltype(field.valid), base::Flag>;
  if (facts.option != nullptr) schema["x-option"] = std::string(is_switch ? "--" : "") + facts.option;
  if (HasPair(facts)) schema["x-metadata-key"] = MetadataKey(facts);
  if (facts.read_with != nullptr) schema["x-read-with"] = facts.read_with;
  return schema;
}

}  // namespace

object RequestSchema(BodyKind kind) {
  object properties;
  const ImageRequest usual;
  const std::vector<std::string> fields = GenerationFields(kind);
  base::ForEachField(
      [&](const auto& field, const auto& value) {
        const std::string name = ApiName(field.facts);
        if (!field.facts.half && std::ranges::count(fields, name) > 0) properties[name] = FieldSchema(field, value);
      },
      usual);
  if (kind != BodyKind::kJob) {
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
