// Converts layouts from and to text.
#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/macros/status_macros.h"
#include "parallel/plan/layout.h"

namespace tessera::parallel {
namespace {

constexpr std::array<Axis, 5> kLayoutAxes = {Axis::kCfg, Axis::kPipe, Axis::kRing, Axis::kUlysses, Axis::kTensor};
constexpr std::array<const char*, 7> kFields = {"cfg", "pipe", "ring", "ulysses", "tensor", "patches", "warmup"};
constexpr size_t kMaxText = 200;  // longer texts are rejected
constexpr size_t kMaxQuotedBytes = 60;
constexpr int kMaxWarmup = 10000;

// Returns a printable form of arbitrary bytes.
std::string Quoted(const std::string& value) {
  std::string shown = value.substr(0, kMaxQuotedBytes);
  for (char& c : shown) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return absl::StrCat("'", shown, value.size() > kMaxQuotedBytes ? "…'" : "'");
}

std::string Stripped(absl::string_view text) { return std::string(absl::StripAsciiWhitespace(text)); }

// Returns the field with the longest common prefix with `name`.
std::string NearestField(const std::string& name) {
  const std::string lower = absl::AsciiStrToLower(name);
  std::string nearest;
  size_t longest = 0;
  for (const std::string field : kFields) {
    const auto [end, ignored] = std::ranges::mismatch(field, lower);
    const size_t common = static_cast<size_t>(end - field.begin());
    if (common > longest) nearest = field, longest = common;
  }
  return nearest;
}

// Returns the value of a text that consists of digits, or nothing. A value too large for an int gives the largest int.
std::optional<int> Digits(const std::string& text) {
  if (text.empty() || !std::ranges::all_of(text, [](unsigned char c) { return absl::ascii_isdigit(c); })) return {};
  int value = 0;
  return absl::SimpleAtoi(text, &value) ? value : std::numeric_limits<int>::max();
}

// Reads one "name=value" into `layout`. An error has only the reason.
absl::Status ReadField(const std::string& name, const std::string& value, Layout& layout) {
  const bool warmup = name == "warmup";
  if (warmup && value == "all") return layout.warmup.reset(), absl::OkStatus();
  const int most = warmup ? kMaxWarmup : name == "patches" ? kMaxPatches : kMaxRanks;
  const std::optional<int> number = Digits(value);
  if (!number || *number < 1 || *number > most) {
    const std::string nearest = number ? absl::StrCat(", the nearest is ", std::clamp(*number, 1, most)) : "";
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", Quoted(value), "; valid values are 1 to ", most, warmup ? " or all" : "", nearest));
  }
  if (warmup) {
    layout.warmup = *number;
  } else if (name == "patches") {
    layout.patches = *number;
  } else {
    const auto axis = std::ranges::find_if(kLayoutAxes, [&](Axis a) { return name == std::string(AxisName(a)); });
    layout.mesh[*axis] = *number;
  }
  return absl::OkStatus();
}

absl::Status ReadLayout(const std::string& text, Layout& layout) {
  if (text.size() > kMaxText) return absl::InvalidArgumentError("it is too long");
  if (Stripped(text) == "serial") return absl::OkStatus();
  std::vector<std::string> seen;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::vector<std::string> sides = absl::StrSplit(part, absl::MaxSplits('=', 1));
    const std::string name = Stripped(sides[0]);
    if (std::ranges::find(kFields, name) == kFields.end()) {
      const std::string nearest = NearestField(name);
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(name), " is not a part of a layout; valid values are ", absl::StrJoin(kFields, ", "),
                       ", or serial alone", nearest.empty() ? "" : absl::StrCat("; the nearest is ", nearest)));
    }
    if (sides.size() < 2) return absl::InvalidArgumentError(absl::StrCat(name, " has no value; write ", name, "=2"));
    if (std::ranges::find(seen, name) != seen.end()) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is given twice; each may be given once"));
    }
    seen.push_back(name);
    RETURN_IF_ERROR(ReadField(name, Stripped(sides[1]), layout));
  }
  // With one stage and one patch there is no warm-up.
  if (layout.mesh.pipe == 1 && layout.patches == 1) layout.warmup.reset();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Layout> ParseLayout(const std::string& text) {
  Layout layout;
  const absl::Status status = ReadLayout(text, layout);
  if (status.ok()) return layout;
  return absl::InvalidArgumentError(absl::StrCat("layout ", Quoted(text), ": ", std::string(status.message())));
}

std::string LayoutText(const Layout& layout) {
  std::vector<std::string> parts;
  for (const Axis axis : kLayoutAxes) {
    if (layout.mesh[axis] != 1) parts.push_back(absl::StrCat(std::string(AxisName(axis)), "=", layout.mesh[axis]));
  }
  if (layout.patches != 1) parts.push_back(absl::StrCat("patches=", layout.patches));
  if (layout.warmup) parts.push_back(absl::StrCat("warmup=", *layout.warmup));
  return parts.empty() ? "serial" : absl::StrJoin(parts, ",");
}

}  // namespace tessera::parallel
