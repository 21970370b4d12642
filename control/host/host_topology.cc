#include "control/host/host_topology.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/fields/enum_names.h"
#include "base/machine/numa_nodes.h"
#include "control/host/device.h"

namespace tessera::control {
namespace {

GpuPlace PlaceGpu(const DriverGpu& gpu, const std::vector<base::NumaNode>& nodes, const std::string& root) {
  GpuPlace place{.pci_address = gpu.pci_address, .uuid = gpu.uuid};
  const std::optional<base::PciPlace> found = base::ReadPciPlace(gpu.pci_address, root);
  if (!found) return place;
  place.path = found->path;
  // The kernel may report no node on hosts that have only one.
  const std::optional<int32_t> number =
      !found->numa_node && nodes.size() == 1 ? std::optional(nodes.front().number) : found->numa_node;
  const auto node =
      std::find_if(nodes.begin(), nodes.end(), [&](const base::NumaNode& n) { return n.number == number; });
  if (node == nodes.end()) return place;
  place.numa_node = node->number;
  place.socket = node->socket;
  return place;
}

GpuLink PcieLink(const GpuPlace& a, const GpuPlace& b) {
  if (a.path.empty() || b.path.empty()) return GpuLink::kPcie;
  const auto shared = std::mismatch(a.path.begin(), a.path.end(), b.path.begin(), b.path.end()).first - a.path.begin();
  // The first two entries of a path are the root complex and one of its ports, which has one device or one switch below
  // it.
  if (shared >= 2) return GpuLink::kPcieSwitch;
  if (shared == 1 || (a.numa_node && a.numa_node == b.numa_node)) return GpuLink::kPcieSocket;
  if (!a.socket || !b.socket) return GpuLink::kPcie;
  return a.socket == b.socket ? GpuLink::kPcieSocket : GpuLink::kPcieSockets;
}

}  // namespace

GpuPlace PlaceGpu(const std::string& pci_address, const std::string& root) {
  return PlaceGpu(DriverGpu{.pci_address = pci_address}, base::ReadNumaNodes(root), root);
}

std::optional<GpuLink> HostTopology::SlowestLink(absl::Span<const size_t> of) const {
  if (of.size() < 2 || std::any_of(of.begin(), of.end(), [&](size_t gpu) { return gpu >= gpus.size(); })) {
    return std::nullopt;
  }
  GpuLink slowest = GpuLink::kNvlink;
  for (const size_t a : of) {
    for (const size_t b : of) slowest = std::max(slowest, link(a, b));
  }
  return slowest;
}

std::optional<size_t> HostTopology::FindGpu(absl::string_view device) const {
  const std::optional<Device> parsed = ParseDevice(device);
  if (!parsed || parsed->kind != DeviceKind::kCuda) return std::nullopt;
  if (parsed->name.empty()) {
    const auto index = static_cast<size_t>(std::max(0, parsed->index));
    return index < gpus.size() ? std::optional(index) : std::nullopt;
  }
  const auto found = std::find_if(gpus.begin(), gpus.end(), [&](const GpuPlace& g) { return g.uuid == parsed->name; });
  if (found == gpus.end()) return std::nullopt;
  return static_cast<size_t>(found - gpus.begin());
}

HostTopology ReadHostTopology(GpuDriver& driver, const std::string& root) {
  HostTopology topology;
  topology.infiniband = base::ReadInfinibandPorts(topology.problems, root);
  const absl::StatusOr<std::vector<DriverGpu>> gpus = driver.Gpus();
  if (!gpus.ok()) {
    topology.problems.emplace_back(gpus.status().message());
    return topology;
  }
  const std::vector<base::NumaNode> nodes = base::ReadNumaNodes(root);
  for (const DriverGpu& gpu : *gpus) {
    topology.gpus.push_back(PlaceGpu(gpu, nodes, root));
    if (topology.gpus.back().path.empty()) {
      topology.problems.push_back(absl::StrCat("the kernel does not show where ", gpu.pci_address, " is"));
    }
  }
  const size_t count = topology.gpus.size();
  topology.links.assign(count * count, GpuLink::kNvlink);
  bool asks = true;  // NVML, until it fails to answer
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = a + 1; b < count; ++b) {
      const GpuPlace &one = topology.gpus[a], &other = topology.gpus[b];
      GpuLink link = PcieLink(one, other);
      if (asks) {
        const absl::StatusOr<bool> nvlink = driver.HaveNvlink(one.pci_address, other.pci_address);
        if (!nvlink.ok()) {
          topology.problems.push_back(
              absl::StrCat("it is not known which GPUs have NVLink: ", std::string(nvlink.status().message())));
          asks = topology.knows_nvlink = false;
        } else if (*nvlink) {
          link = GpuLink::kNvlink;
        }
      }
      topology.links[(a * count) + b] = topology.links[(b * count) + a] = link;
    }
  }
  return topology;
}

std::string LinksText(const HostTopology& topology) {
  std::map<GpuLink, std::vector<std::string>> pairs;  // fastest first
  for (size_t a = 0; a < topology.gpus.size(); ++a) {
    for (size_t b = a + 1; b < topology.gpus.size(); ++b) {
      pairs[topology.link(a, b)].push_back(absl::StrCat("cuda:", a, " and cuda:", b));
    }
  }
  if (pairs.size() == 1) return absl::StrCat(base::EnumName(pairs.begin()->first), " between all");
  std::vector<std::string> parts;
  for (const auto& [link, of] : pairs) {
    const bool last = parts.size() + 1 == pairs.size();
    parts.push_back(absl::StrCat(base::EnumName(link), " between ", last ? "all others" : absl::StrJoin(of, ", ")));
  }
  return absl::StrJoin(parts, "; ");
}

}  // namespace tessera::control
