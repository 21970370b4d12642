#include "server/api/picture_size.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/api/field_checks.h"

namespace tessera::server {
namespace {

constexpr int32_t kMaxSide = 65536;

bool ParseSide(absl::string_view text, int32_t& side) {
  return std::ranges::all_of(text, absl::ascii_isdigit) && absl::SimpleAtoi(text, &side) && side >= 1 &&
         side <= kMaxSide;
}

}  // namespace

absl::StatusOr<PictureSize> ParsePictureSize(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> sides = absl::StrSplit(text, absl::MaxSplits('x', 1));
  PictureSize size;
  if (ParseSide(sides.first, size.width) && ParseSide(sides.second, size.height)) return size;
  return absl::InvalidArgumentError(
      absl::StrCat("is ", QuotedValue(std::string(text)),
                   "; it must be WIDTHxHEIGHT in pixels, such as 1024x768, each from 1 to ", kMaxSide));
}

}  // namespace tessera::server
