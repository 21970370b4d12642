// HostTopology holds how the GPUs that this process sees are connected to each other, to the processors and to the
// network adapters. Layouts are chosen by it, and operators can print it. LibTorch-free.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "base/machine/infiniband.h"
#include "base/machine/pci_place.h"
#include "control/host/gpu_driver.h"

namespace tessera::control {

// The path between two GPUs, in order of falling speed.
enum class GpuLink : uint8_t {
  kNvlink,       // direct or through NVSwitch
  kPcieSwitch,   // through a common bridge, so that data need not pass through a processor
  kPcieSocket,   // through one processor
  kPcieSockets,  // through the link between processors
  kPcie,         // one of the three above, not known which
};
constexpr auto NamesOf(GpuLink) {
  return std::array{"NVLink", "PCIe within a switch", "PCIe within a socket", "PCIe across sockets", "PCIe"};
}

struct GpuPlace {
  std::string pci_address;
  std::string uuid;                  // "GPU-…"
  std::vector<std::string> path;     // as in base::PciPlace; empty if the kernel does not show it
  std::optional<int32_t> numa_node;  // a node that exists on this host
  std::optional<int32_t> socket;
};

struct HostTopology {
  std::vector<GpuPlace> gpus;  // by CUDA's index, which counts within CUDA_VISIBLE_DEVICES
  std::vector<base::InfinibandPort> infiniband;
  bool knows_nvlink = true;           // false: NVML does not answer, so a pair with a PCIe link may have NVLink
  std::vector<std::string> problems;  // one sentence for each item that could not be read

  // The link between two indexes of `gpus`; kNvlink if they are equal.
  GpuLink link(size_t gpu, size_t other) const { return links[(gpu * gpus.size()) + other]; }
  // Whether a port of an InfiniBand or RoCE adapter is connected.
  bool has_active_port() const {
    return std::any_of(infiniband.begin(), infiniband.end(), [](const base::InfinibandPort& p) { return p.active; });
  }
  // The slowest link between any two of these GPUs; nullopt if an index does not exist or there are fewer than two.
  std::optional<GpuLink> SlowestLink(absl::Span<const size_t> of) const;

  // Index of a device named as for ParseDevice: "cuda:1" or "GPU-…"; "cuda" is the first. Returns nullopt for all other
  // names, including those of parts of a GPU.
  std::optional<size_t> FindGpu(absl::string_view device) const;

  std::vector<GpuLink> links;  // [gpus.size(), gpus.size()]
};

// Never fails: values that cannot be read are unknown, and `problems` lists them. Without a driver there are no GPUs.
// Reads `root`/sys; `root` is not empty in tests only.
HostTopology ReadHostTopology(GpuDriver& driver, const std::string& root = "");

// The place of the GPU with this PCI address, read from the kernel.
GpuPlace PlaceGpu(const std::string& pci_address, const std::string& root = "");

// "NVLink between all", or the links by pair: "NVLink between cuda:0 and cuda:1, cuda:2 and cuda:3; PCIe across sockets
// between all others". Empty for fewer than two GPUs.
std::string LinksText(const HostTopology& topology);

}  // namespace tessera::control
