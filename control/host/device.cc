#include "control/host/device.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tessera::control {
namespace {

// Consumes groups of 8, 4, 4, 4 and 12 hexadecimal digits.
bool ConsumeUuid(absl::string_view& text) {
  constexpr absl::string_view kShape = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  if (text.size() < kShape.size()) return false;
  for (size_t i = 0; i < kShape.size(); ++i) {
    if (kShape[i] == '-' ? text[i] != '-' : !absl::ascii_isxdigit(static_cast<unsigned char>(text[i]))) return false;
  }
  text.remove_prefix(kShape.size());
  return true;
}

bool ConsumeInstance(absl::string_view& text) {
  if (!absl::ConsumePrefix(&text, "/")) return false;
  const size_t digits = std::min(text.size(), text.find_first_not_of("0123456789"));
  text.remove_prefix(digits);
  return digits > 0;
}

bool IsMakersName(absl::string_view name) {
  if (absl::ConsumePrefix(&name, "MIG-GPU-")) {
    return ConsumeUuid(name) && ConsumeInstance(name) && ConsumeInstance(name) && name.empty();
  }
  return (absl::ConsumePrefix(&name, "GPU-") || absl::ConsumePrefix(&name, "MIG-")) && ConsumeUuid(name) &&
         name.empty();
}

}  // namespace

std::optional<Device> ParseDevice(absl::string_view name) {
  if (name == "cpu") return Device();
  Device device = {.kind = DeviceKind::kCuda};
  if (name == "cuda") return device;
  if (IsMakersName(name)) {
    device.name = std::string(name);
    return device;
  }
  const bool numbered = absl::ConsumePrefix(&name, "cuda:") &&
                        std::all_of(name.begin(), name.end(), absl::ascii_isdigit) &&
                        absl::SimpleAtoi(name, &device.index);
  if (!numbered) return std::nullopt;
  return device;
}

std::string DeviceText(const Device& device) {
  if (device.kind == DeviceKind::kCpu) return "cpu";
  if (!device.name.empty()) return device.name;
  return device.index < 0 ? "cuda" : absl::StrCat("cuda:", device.index);
}

bool IsNodeName(absl::string_view name) {
  constexpr size_t kLongest = 63;
  const auto fits = [](unsigned char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); };
  return !name.empty() && name.size() <= kLongest && fits(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(), [&](unsigned char c) { return fits(c) || c == '-' || c == '.'; });
}

bool IsNodeDevice(absl::string_view name) {
  constexpr size_t kMostDigits = 4;
  return (absl::ConsumePrefix(&name, "cpu:") || absl::ConsumePrefix(&name, "cuda:")) && !name.empty() &&
         name.size() <= kMostDigits && std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
}

PlacedDevice SplitDevice(absl::string_view name) {
  const size_t slash = name.find('/');
  if (slash == absl::string_view::npos || !IsNodeName(name.substr(0, slash))) return {.device = std::string(name)};
  return {.node = std::string(name.substr(0, slash)), .device = std::string(name.substr(slash + 1))};
}

std::string DeviceOnItsHost(absl::string_view name) {
  PlacedDevice placed = SplitDevice(name);
  if (!placed.node.empty() && IsNodeDevice(placed.device) && placed.device.rfind("cpu:", 0) == 0) return "cpu";
  return std::move(placed.device);
}

bool IsDevice(absl::string_view name, DeviceKind kind) {
  const std::optional<Device> device = ParseDevice(DeviceOnItsHost(name));
  return device.has_value() && device->kind == kind;
}

}  // namespace tessera::control
