#include "base/json/plain_json.h"

#include <boost/json/serialize.hpp>

#include "base/json/json_writer.h"

namespace tessera::base {
namespace {

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

// Recursion is safe: this program creates the values, and they are only a few levels deep.
void Append(const boost::json::value& value, std::string& text) {
  if (value.is_double()) {
    text += JsonNumber(value.get_double());
    return;
  }
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
