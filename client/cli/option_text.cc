#include "client/cli/option_text.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/macros/status_macros.h"
#include "server/api/request_values.h"

namespace tessera::client {
namespace {

bool IsInteger(absl::string_view text) {
  absl::ConsumePrefix(&text, "-");
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

absl::Status Malformed(absl::string_view field, const std::string& text, absl::string_view valid) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is '", text, "'; it must be ", valid));
}

}  // namespace

absl::StatusOr<int64_t> ParseInteger(absl::string_view field, const std::string& text) {
  if (!IsInteger(text)) return Malformed(field, text, "a whole number");
  int64_t value = 0;
  if (absl::SimpleAtoi(text, &value)) return value;
  return text[0] == '-' ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
}

absl::StatusOr<std::vector<int64_t>> ParseIntegers(absl::string_view field, const std::string& text) {
  std::vector<int64_t> values;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    absl::StatusOr<int64_t> value = ParseInteger(field, part);
    if (!value.ok()) return Malformed(field, text, "whole numbers with commas between them, such as 7,8,9");
    values.push_back(*value);
  }
  return values;
}

absl::StatusOr<std::optional<uint64_t>> ParseSeed(const std::string& text) {
  if (text == kAnySeed) return std::nullopt;
  uint64_t value = 0;
  if (IsInteger(text) && absl::SimpleAtoi(text, &value)) return value;
  return Malformed(
      "seed", text,
      absl::StrCat("a whole number from 0 to ", std::numeric_limits<uint64_t>::max(), ", or ", kAnySeed, " for any"));
}

absl::StatusOr<double> ParseNumber(absl::string_view field, const std::string& text) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value)) return Malformed(field, text, "a number");
  return value;
}

absl::StatusOr<TypedSize> ParseSize(absl::string_view field, const std::string& text) {
  const size_t cross = text.find_first_of("xX");
  const std::string width = text.substr(0, cross);
  const std::string height = cross == std::string::npos ? width : text.substr(cross + 1);
  if (!IsInteger(width) || !IsInteger(height)) {
    return Malformed(field, text, "WIDTHxHEIGHT in pixels, such as 768x512");
  }
  return TypedSize{.width = ParseInteger("width", width).value(), .height = ParseInteger("height", height).value()};
}

absl::StatusOr<server::ImageRequest> SizedRequest(const std::string& size) {
  server::ImageRequest request;
  request.resolution_binning = false;
  if (size.empty()) return request;
  ASSIGN_OR_RETURN(const TypedSize typed, ParseSize("size", size));
  request.width = typed.width;
  request.height = typed.height;
  return request;
}

}  // namespace tessera::client
