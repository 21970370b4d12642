// RapidJSON's reader without the undefined behaviour of RapidJSON 1.1.
//
// Its stack compares distances to find out whether it must grow. RapidJSON 1.1 adds an offset to the null pointer of an
// empty stack, which ends a program under UBSan; later versions also compare distances. Numbers must be requested as
// text (kParseNumbersAsStringsFlag), because RapidJSON's conversion is undefined for a zero with an exponent.
#pragma once

#include <rapidjson/reader.h>

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <system_error>
#include <variant>

#include "absl/strings/charconv.h"

namespace tessera::base {

using ParsedNumber = std::variant<int64_t, uint64_t, double>;

// Converts a JSON number; nothing if it is too large for a double. A number too small for a double gives the nearest
// one.
inline std::optional<ParsedNumber> ReadJsonNumber(const char* text, size_t length) {
  const char* const end = text + length;
  const auto is_whole = [end](const std::from_chars_result& read) { return read.ec == std::errc() && read.ptr == end; };
  int64_t integer = 0;
  if (is_whole(std::from_chars(text, end, integer))) return integer;
  uint64_t natural = 0;
  if (is_whole(std::from_chars(text, end, natural))) return natural;
  double number = 0;
  const absl::from_chars_result read = absl::from_chars(text, end, number);
  if (read.ptr != end || (read.ec != std::errc() && std::abs(number) > 1)) return std::nullopt;
  return number;
}

// Selects the corrected stack.
class JsonStackAllocator final : public rapidjson::CrtAllocator {};

using JsonReader = rapidjson::GenericReader<rapidjson::UTF8<>, rapidjson::UTF8<>, JsonStackAllocator>;

}  // namespace tessera::base

template <>
template <typename T>
inline void rapidjson::internal::Stack<tessera::base::JsonStackAllocator>::Reserve(std::size_t count) {
  if (static_cast<std::ptrdiff_t>(sizeof(T) * count) > stackEnd_ - stackTop_) Expand<T>(count);
}
