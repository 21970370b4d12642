#include "base/toml/toml_document.h"

#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/json/json_writer.h"
#include "base/text/utf8.h"

namespace tessera::base {
namespace {

template <class Value>
std::string TextOf(const Value& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

// The parser bounds the nesting, and with it the depth of this recursion.
void Write(const toml::node& node, JsonWriter& json) {
  if (const toml::table* const table = node.as_table(); table != nullptr) {
    json.BeginObject();
    for (const auto& [key, value] : *table) {
      json.Key(key.str());
      Write(value, json);
    }
    json.EndObject();
  } else if (const toml::array* const array = node.as_array(); array != nullptr) {
    json.BeginArray();
    for (const toml::node& value : *array) Write(value, json);
    json.EndArray();
  } else if (const auto* const text = node.as_string(); text != nullptr) {
    json.String(text->get());
  } else if (const auto* const integer = node.as_integer(); integer != nullptr) {
    json.Int(integer->get());
  } else if (const auto* const number = node.as_floating_point(); number != nullptr) {
    json.Number(number->get());
  } else if (const auto* const flag = node.as_boolean(); flag != nullptr) {
    json.Bool(flag->get());
  } else if (const auto* const date = node.as_date(); date != nullptr) {
    json.String(TextOf(date->get()));
  } else if (const auto* const time = node.as_time(); time != nullptr) {
    json.String(TextOf(time->get()));
  } else if (const auto* const date_time = node.as_date_time(); date_time != nullptr) {
    json.String(TextOf(date_time->get()));
  }
}

}  // namespace

absl::StatusOr<std::string> TomlToJson(const std::string& text) {
  if (const size_t wrong = FirstInvalidUtf8(text); wrong < text.size()) {
    const auto lines = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(wrong), '\n');
    return absl::InvalidArgumentError(absl::StrCat("not TOML: it is not UTF-8 (line ", lines + 1, ")"));
  }
  const toml::parse_result parsed = toml::parse(std::string_view(text));
  if (!parsed) {
    return absl::InvalidArgumentError(
        absl::StrCat("not TOML: ", base::ReplaceControlCharacters(std::string(parsed.error().description())), " (line ",
                     parsed.error().source().begin.line, ")"));
  }
  JsonWriter json;
  Write(parsed.table(), json);
  return json.text();
}

}  // namespace tessera::base
