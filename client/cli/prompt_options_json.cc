#include "client/cli/prompt_options_json.h"

#include "client/cli/output/json_line.h"

namespace tessera::client {
namespace {

boost::json::value ValueOf(const std::string& text) { return JsonText(text); }
boost::json::value ValueOf(double number) { return number; }
boost::json::value ValueOf(int32_t number) { return number; }
boost::json::value ValueOf(const std::vector<int32_t>& numbers) {
  return boost::json::array(numbers.begin(), numbers.end());
}

}  // namespace

boost::json::object PromptOptionsJson(const control::PromptOptions& options) {
  const control::PromptOptions usual;
  boost::json::object object;
  const auto add = [&object](const auto& field, const auto& value, const auto& usual_value) {
    if (value != usual_value) object[field.name] = ValueOf(value);
  };
  base::ForEachField(add, options, usual);
  return object;
}

}  // namespace tessera::client
