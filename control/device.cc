#include "control/device.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tessera::control {

std::optional<Device> ParseDevice(absl::string_view name) {
  if (name == "cpu") return Device();
  Device device = {.kind = DeviceKind::kCuda};
  if (name == "cuda") return device;
  const bool numbered = absl::ConsumePrefix(&name, "cuda:") &&
                        std::all_of(name.begin(), name.end(), absl::ascii_isdigit) &&
                        absl::SimpleAtoi(name, &device.index);
  if (!numbered) return std::nullopt;
  return device;
}

std::string DeviceText(const Device& device) {
  if (device.kind == DeviceKind::kCpu) return "cpu";
  return device.index < 0 ? "cuda" : absl::StrCat("cuda:", device.index);
}

bool IsDevice(absl::string_view name, DeviceKind kind) {
  const std::optional<Device> device = ParseDevice(name);
  return device.has_value() && device->kind == kind;
}

}  // namespace tessera::control
