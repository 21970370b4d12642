#include "base/json/json_writer.h"

#include <charconv>
#include <cmath>
#include <cstdio>

namespace tessera::base {

std::string JsonText(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (c == '\n') {
      json += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(c));
      json += escaped;
    } else {
      json += c;
    }
  }
  return json + '"';
}

std::string JsonNumber(double number) {
  if (!std::isfinite(number)) return "null";
  char digits[32];
  const std::to_chars_result end = std::to_chars(digits, digits + sizeof(digits), number);
  std::string text(digits, end.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

JsonWriter& JsonWriter::Key(std::string_view key) {
  Value(JsonText(key));
  text_ += ':';
  return *this;
}

JsonWriter& JsonWriter::Ints(const std::vector<int64_t>& numbers) {
  BeginArray();
  for (const int64_t number : numbers) Int(number);
  return EndArray();
}

JsonWriter& JsonWriter::Open(char bracket) {
  Value({});
  text_ += bracket;
  return *this;
}

JsonWriter& JsonWriter::Close(char bracket) {
  text_ += bracket;
  return *this;
}

JsonWriter& JsonWriter::Value(std::string_view json) {
  // No comma before the first value of the text, of an object or of an array, and after a key.
  if (!text_.empty() && text_.back() != '{' && text_.back() != '[' && text_.back() != ':') text_ += ',';
  text_ += json;
  return *this;
}

}  // namespace tessera::base
