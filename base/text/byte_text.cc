#include "base/text/byte_text.h"

#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera::base {
namespace {

constexpr double kMostBytes = static_cast<double>(uint64_t{1} << 60);
constexpr std::array<std::pair<absl::string_view, double>, 6> kUnits = {
    {{"kib", 1024.0}, {"mib", 1048576.0}, {"gib", 1073741824.0}, {"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}}};

}  // namespace

std::string ByteText(uint64_t bytes) {
  if (bytes >= uint64_t{1} << 30) return absl::StrFormat("%.2f GiB", bytes / double(uint64_t{1} << 30));
  if (bytes >= uint64_t{1} << 20) return absl::StrFormat("%.1f MiB", bytes / double(1 << 20));
  return absl::StrFormat("%.1f KiB", bytes / 1024.0);
}

absl::StatusOr<uint64_t> ParseByteText(absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(text);
  for (const auto& [unit, bytes] : kUnits) {
    if (!absl::EndsWith(lower, unit)) continue;
    const absl::string_view digits =
        absl::StripTrailingAsciiWhitespace(absl::string_view(lower).substr(0, lower.size() - unit.size()));
    double number = 0;
    // No sign, exponent or name of a number.
    const bool is_decimal = !digits.empty() && digits.find_first_not_of("0123456789.") == absl::string_view::npos;
    if (is_decimal && absl::SimpleAtod(digits, &number) && number * bytes <= kMostBytes) {
      return static_cast<uint64_t>(std::round(number * bytes));
    }
    break;
  }
  return absl::InvalidArgumentError("is not a size of memory; write a number and a unit, such as 12GiB");
}

absl::Status CheckByteText(absl::string_view field, absl::string_view text, uint64_t least) {
  const absl::StatusOr<uint64_t> bytes = ParseByteText(text);
  if (!bytes.ok()) return absl::InvalidArgumentError(absl::StrCat(field, " ", bytes.status().message()));
  if (*bytes >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", ByteText(*bytes), "; it must be at least ", ByteText(least)));
}

std::string GibText(double bytes) { return absl::StrFormat("%.1f GiB", bytes / (1 << 30)); }

}  // namespace tessera::base
