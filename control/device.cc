#include "control/device.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tessera::control {
namespace {

// Groups of 8, 4, 4, 4 and 12 hexadecimal digits.
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

bool IsDevice(absl::string_view name, DeviceKind kind) {
  const std::optional<Device> device = ParseDevice(name);
  return device.has_value() && device->kind == kind;
}

}  // namespace tessera::control
