#include "base/plain_json.h"

#include <array>
#include <boost/json/serialize.hpp>
#include <charconv>
#include <cmath>

namespace tessera::base {
namespace {

void AppendNumber(double number, std::string& text) {
  if (!std::isfinite(number)) {
    text += "null";
    return;
  }
  std::array<char, 32> digits;
  const char* const end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  const std::string_view written(digits.data(), static_cast<size_t>(end - digits.data()));
  text += written;
  if (written.find_first_of(".e") == std::string_view::npos) text += ".0";
}

void Append(const boost::json::value& value, std::string& text);

void AppendArray(const boost::json::array& array, std::string& text) {
  char before = '[';
  for (const boost::json::value& item : array) {
    text += before;
    Append(item, text);
    before = ',';
  }
  text += array.empty() ? "[]" : "]";
}

void AppendObject(const boost::json::object& object, std::string& text) {
  char before = '{';
  for (const boost::json::key_value_pair& member : object) {
    text += before;
    text += boost::json::serialize(member.key());
    text += ':';
    Append(member.value(), text);
    before = ',';
  }
  text += object.empty() ? "{}" : "}";
}

// Recursive: values are made by this program, a few levels deep.
void Append(const boost::json::value& value, std::string& text) {
  if (value.is_double()) return AppendNumber(value.get_double(), text);
  if (value.is_array()) return AppendArray(value.get_array(), text);
  if (value.is_object()) return AppendObject(value.get_object(), text);
  text += boost::json::serialize(value);
}

}  // namespace

std::string PlainJson(const boost::json::value& value) {
  std::string text;
  Append(value, text);
  return text;
}

}  // namespace tessera::base
