#include "base/machine/infiniband.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/machine/pci_place.h"

namespace tessera::base {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxLineBytes = 64;
constexpr size_t kMostEntries = 256;  // devices of a machine, ports of a device

// The kernel's enum ib_port_state.
constexpr std::array kStates = {"0: NOP", "1: DOWN", "2: INIT", "3: ARMED", "4: ACTIVE", "5: ACTIVE_DEFER"};

// Returns the names of the folder's entries, ascending.
std::vector<std::string> EntriesOf(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end && names.size() < kMostEntries;
       entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Returns a short line of printable characters, or an empty string.
std::string ReadLine(const std::string& path) {
  const std::string text = ReadSmallFile(path, kMaxLineBytes).value_or("");
  const std::string line(absl::StripAsciiWhitespace(text));
  const auto is_printable = [](char c) { return absl::ascii_isprint(static_cast<unsigned char>(c)); };
  return text.size() <= kMaxLineBytes && std::all_of(line.begin(), line.end(), is_printable) ? line : "";
}

bool IsDeviceName(const std::string& name) {
  return name.size() <= kMaxLineBytes && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
         });
}

}  // namespace

std::vector<InfinibandPort> ReadInfinibandPorts(std::vector<std::string>& problems, const std::string& root) {
  std::vector<InfinibandPort> ports;
  const std::string devices = root + "/sys/class/infiniband";
  for (const std::string& device : EntriesOf(devices)) {
    if (!IsDeviceName(device)) {
      problems.emplace_back("an InfiniBand device has an invalid name and is ignored");
      continue;
    }
    const std::string folder = absl::StrCat(devices, "/", device);
    for (const std::string& name : EntriesOf(folder + "/ports")) {
      const std::string files = absl::StrCat(folder, "/ports/", name);
      InfinibandPort port{.device = device,
                          .state = ReadLine(files + "/state"),
                          .link_layer = ReadLine(files + "/link_layer"),
                          .rate = ReadLine(files + "/rate"),
                          .numa_node = ReadNumaNode(folder + "/device/numa_node")};
      const bool known = std::find(kStates.begin(), kStates.end(), port.state) != kStates.end();
      if (!absl::SimpleAtoi(name, &port.port) || port.port < 1 || port.port > 255 || !known ||
          (port.link_layer != "InfiniBand" && port.link_layer != "Ethernet")) {
        problems.push_back(absl::StrCat("a port of ", device, " has an unknown state or link layer and is ignored"));
        continue;
      }
      port.active = port.state == "4: ACTIVE";
      ports.push_back(std::move(port));
    }
  }
  return ports;
}

}  // namespace tessera::base
