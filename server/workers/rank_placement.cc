#include "server/workers/rank_placement.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "control/device.h"

namespace tessera::server {

std::string PlaceRanks(const parallel::Layout& layout, const std::string& devices) {
  const std::vector<std::string> names = absl::StrSplit(devices, ',');
  const auto ranks = static_cast<size_t>(layout.ranks());
  std::vector<std::pair<std::string, std::vector<std::string>>> hosts;  // in the order in which they are named
  for (const std::string& name : names) {
    const std::string node = control::SplitDevice(name).node;
    auto host = std::ranges::find_if(hosts, [&](const auto& known) { return known.first == node; });
    if (host == hosts.end()) host = hosts.insert(hosts.end(), {node, {}});
    host->second.push_back(name);
  }
  if (names.size() != ranks || hosts.size() == 1) return devices;
  // Whole groups of ranks first, then what is left of each host.
  const auto together = static_cast<size_t>(layout.mesh.ring * layout.mesh.ulysses * layout.mesh.tensor);
  std::vector<std::string> placed, left;
  for (const auto& [node, own] : hosts) {
    const auto whole = static_cast<std::ptrdiff_t>(own.size() / together * together);
    placed.insert(placed.end(), own.begin(), own.begin() + whole);
    left.insert(left.end(), own.begin() + whole, own.end());
  }
  placed.insert(placed.end(), left.begin(), left.end());
  return absl::StrJoin(placed, ",");
}

}  // namespace tessera::server
