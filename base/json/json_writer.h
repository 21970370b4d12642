// JsonWriter produces JSON text value by value, without a tree, for any program. base/json/plain_json.h writes trees of
// Boost.JSON in the same format.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::base {

// Returns `text` as a JSON string, with quotes. It must be UTF-8; control characters, quotes and backslashes are
// escaped.
std::string JsonText(std::string_view text);

// Returns the fewest digits that read back as the same number, always with a point or an exponent; "null" for a number
// that is not finite, because JSON cannot represent it.
std::string JsonNumber(double number);

// Inserts commas and colons. The caller must close what it opens and give each member of an object a key.
class JsonWriter {
 public:
  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }
  JsonWriter& Key(std::string_view key);

  JsonWriter& String(std::string_view text) { return Value(JsonText(text)); }
  JsonWriter& Int(int64_t number) { return Value(std::to_string(number)); }
  JsonWriter& Number(double number) { return Value(JsonNumber(number)); }
  JsonWriter& Bool(bool value) { return Value(value ? "true" : "false"); }
  JsonWriter& Ints(const std::vector<int64_t>& numbers);
  JsonWriter& Json(std::string_view json) { return Value(json); }  // one value that is JSON already

  const std::string& text() const { return text_; }

 private:
  JsonWriter& Open(char bracket);
  JsonWriter& Close(char bracket);
  JsonWriter& Value(std::string_view json);

  std::string text_;
};

}  // namespace tessera::base
