#include "client/cli/output/prompt_options_json.h"

#include <string>
#include <type_traits>

#include "client/cli/output/json_line.h"
#include "control/parameters/adapter_use.h"
#include "control/parameters/prompt_options.h"

namespace tessera::client {
namespace {

template <class Value>
boost::json::value JsonValueOf(const Value& value) {
  if constexpr (base::kIsList<Value>) {
    boost::json::array items;
    for (const auto& item : value) items.push_back(JsonValueOf(item));
    return items;
  } else if constexpr (base::Described<Value>) {
    boost::json::object fields;
    base::ForEachField(
        [&](const auto& field, const auto& member) {
          if constexpr (requires { field.valid.is_path; }) {
            if (field.valid.is_path) return;  // paths are of one machine
          }
          fields[field.name] = JsonValueOf(member);
        },
        value);
    return fields;
  } else if constexpr (std::is_same_v<Value, std::string>) {
    return JsonText(value);
  } else {
    return value;
  }
}

}  // namespace

boost::json::object PromptOptionsJson(const control::PromptOptions& options) {
  const control::PromptOptions usual;
  boost::json::object object;
  const auto add = [&object](const auto& field, const auto& value, const auto& usual_value) {
    if (value != usual_value) object[field.name] = JsonValueOf(value);
  };
  base::ForEachField(add, options, usual);
  return object;
}

boost::json::value AdaptersJson(const std::vector<control::AdapterUse>& adapters) { return JsonValueOf(adapters); }

}  // namespace tessera::client
