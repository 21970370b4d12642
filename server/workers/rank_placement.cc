#include "server/workers/rank_placement.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "control/host/device.h"

namespace tessera::server {
namespace {

struct HostDevices {
  std::string node;
  std::vector<std::string> devices;
};

// The hosts are in the order in which `names` first mentions them.
std::vector<HostDevices> ByHost(const std::vector<std::string>& names) {
  std::vector<HostDevices> hosts;
  for (const std::string& name : names) {
    const std::string node = control::SplitDevice(name).node;
    auto host = std::ranges::find(hosts, node, &HostDevices::node);
    if (host == hosts.end()) host = hosts.insert(hosts.end(), {.node = node, .devices = {}});
    host->devices.push_back(name);
  }
  return hosts;
}

// In ascending order of transfer time.
enum class Distance { kUnknown, kNvlink, kSocket, kHost, kNetwork };

// The distance of the two devices that are farthest apart.
Distance Farthest(std::span<const std::string> devices, const control::HostTopology& topology) {
  std::vector<size_t> gpus;
  for (const std::string& device : devices) {
    if (control::SplitDevice(device).node != control::SplitDevice(devices.front()).node) return Distance::kNetwork;
    if (const std::optional<size_t> gpu = topology.FindGpu(device)) gpus.push_back(*gpu);
  }
  const std::optional<control::GpuLink> slowest = topology.SlowestLink(gpus);
  if (!topology.knows_nvlink || gpus.size() < devices.size() || !slowest) return Distance::kUnknown;
  switch (*slowest) {
    case control::GpuLink::kNvlink:
      return Distance::kNvlink;
    case control::GpuLink::kPcieSwitch:
    case control::GpuLink::kPcieSocket:
    case control::GpuLink::kPcie:
      return Distance::kSocket;
    case control::GpuLink::kPcieSockets:
      break;
  }
  return Distance::kHost;
}

}  // namespace

std::string PlaceRanks(const parallel::Layout& layout, const std::string& devices) {
  const std::vector<std::string> names = absl::StrSplit(devices, ',');
  const auto ranks = static_cast<size_t>(layout.ranks());
  const std::vector<HostDevices> hosts = ByHost(names);
  if (names.size() != ranks || hosts.size() == 1) return devices;
  // Place whole groups of ranks first, then the devices that remain on each host.
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

std::optional<int> NearRanks(const std::string& devices, int ranks, const control::HostTopology& topology) {
  std::vector<std::string> names = absl::StrSplit(devices, ',');
  if (const std::optional<control::Device> each = control::ParseDevice(devices); each && each->index < 0) {
    if (each->kind != control::DeviceKind::kCuda || !each->name.empty()) return std::nullopt;
    names.clear();
    for (int rank = 0; rank < ranks; ++rank) names.push_back(absl::StrCat("cuda:", rank));
  }
  if (names.size() != static_cast<size_t>(ranks)) return std::nullopt;
  const std::vector<HostDevices> hosts = ByHost(names);
  names.clear();
  for (const HostDevices& host : hosts) names.insert(names.end(), host.devices.begin(), host.devices.end());
  const Distance of_all = Farthest(names, topology);
  for (int near = ranks / 2; near > 1; --near) {
    if (ranks % near != 0) continue;
    Distance within = Distance::kUnknown;
    for (int begin = 0; begin < ranks; begin += near) {
      within = std::max(
          within, Farthest(std::span(names).subspan(static_cast<size_t>(begin), static_cast<size_t>(near)), topology));
    }
    if (within < of_all) return near;
  }
  return std::nullopt;
}

}  // namespace tessera::server
