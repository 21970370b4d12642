#include "base/machine/pci_place.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/files/file.h"

namespace tessera::base {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxNodeBytes = 64;
constexpr int32_t kMostNodeNumbers = 1 << 10;

// Parses a hexadecimal number with that many digits and nothing else.
std::optional<uint32_t> Hexadecimal(std::string_view text, size_t fewest, size_t most) {
  uint32_t number = 0;
  if (text.size() < fewest || text.size() > most) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

std::optional<std::string> PciAddress(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == text.npos || text.size() != colon + 8 || text[colon + 3] != ':' || text[colon + 6] != '.') {
    return std::nullopt;
  }
  const std::optional<uint32_t> domain = Hexadecimal(text.substr(0, colon), 4, 8);
  const std::optional<uint32_t> bus = Hexadecimal(text.substr(colon + 1, 2), 2, 2);
  const std::optional<uint32_t> device = Hexadecimal(text.substr(colon + 4, 2), 2, 2);
  const std::optional<uint32_t> function = Hexadecimal(text.substr(colon + 7), 1, 1);
  if (!domain || !bus || !device || !function || *device > 31 || *function > 7) return std::nullopt;
  return absl::StrFormat("%04x:%02x:%02x.%x", *domain, *bus, *device, *function);
}

std::optional<int32_t> ReadNumaNode(const std::string& path) {
  const std::string text = ReadSmallFile(path, kMaxNodeBytes).value_or("");
  int32_t node = -1;
  if (!absl::SimpleAtoi(text, &node) || node < 0 || node >= kMostNodeNumbers) return std::nullopt;
  return node;
}

std::optional<PciPlace> ReadPciPlace(const std::string& address, const std::string& root) {
  if (PciAddress(address) != address) return std::nullopt;
  std::error_code error;
  const fs::path devices = fs::canonical(root + "/sys/devices", error);
  if (error) return std::nullopt;
  // The entry is a link into the tree of devices, whose folders are nested like the bridges.
  const fs::path folder = fs::canonical(root + "/sys/bus/pci/devices/" + address, error);
  if (error || folder.filename() != address) return std::nullopt;
  const fs::path below = folder.lexically_relative(devices);
  if (below.empty() || *below.begin() == "..") return std::nullopt;
  PciPlace place{.path = {below.begin(), below.end()}, .numa_node = ReadNumaNode(folder / "numa_node")};
  return place;
}

}  // namespace tessera::base
