// How the GPUs of this host that a process sees reach each other, and what of the host is near them: what a layout is
// chosen by, and what an operator wants to know of a machine. LibTorch-free.
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
#include "base/infiniband.h"
#include "base/pci_place.h"
#include "control/gpu_driver.h"

namespace tessera::control {

// The path between two GPUs, the fastest first.
enum class GpuLink : uint8_t {
  kNvlink,       // through switches of it or not
  kPcieSwitch,   // a bridge is above both, so that data need not pass through a processor
  kPcieSocket,   // through one processor
  kPcieSockets,  // through the link between processors
  kPcie,         // nobody tells which of the three above
};
constexpr auto NamesOf(GpuLink) {
  return std::array{"NVLink", "PCIe within a switch", "PCIe within a socket", "PCIe across sockets", "PCIe"};
}

struct GpuPlace {
  std::string pci_address;
  std::string uuid;                  // "GPU-…"
  std::vector<std::string> path;     // base::PciPlace's; empty where the kernel shows none
  std::optional<int32_t> numa_node;  // one that the host has
  std::optional<int32_t> socket;
};

struct HostTopology {
  std::vector<GpuPlace> gpus;  // by CUDA's index, which counts within CUDA_VISIBLE_DEVICES
  std::vector<base::InfinibandPort> infiniband;
  bool knows_nvlink = true;           // false: NVML does not tell, so a pair of PCIe may have it
  std::vector<std::string> problems;  // what could not be read, a sentence for each

  // Of two indexes of `gpus`; of one with itself, kNvlink.
  GpuLink link(size_t gpu, size_t other) const { return links[(gpu * gpus.size()) + other]; }
  // Whether a port of an InfiniBand or RoCE adapter is connected.
  bool has_active_port() const {
    return std::any_of(infiniband.begin(), infiniband.end(), [](const base::InfinibandPort& p) { return p.active; });
  }
  // The slowest between any two of them; nothing where one is not here, or there are fewer than two.
  std::optional<GpuLink> SlowestLink(absl::Span<const size_t> of) const;

  // A device as ParseDevice takes it: "cuda:1", or "GPU-…"; "cuda" is the first. Nothing for all others, parts of a GPU
  // among them.
  std::optional<size_t> FindGpu(absl::string_view device) const;

  std::vector<GpuLink> links;  // [gpus.size(), gpus.size()]
};

// Never fails: what cannot be read is unknown, and `problems` says so. Without a driver there are no GPUs. Reads
// `root`/sys; a root other than the empty one is for tests.
HostTopology ReadHostTopology(GpuDriver& driver, const std::string& root = "");

// The GPU at a PCI address, by what the kernel says of it.
GpuPlace PlaceGpu(const std::string& pci_address, const std::string& root = "");

// "NVLink between all", or what lies between which: "NVLink between cuda:0 and cuda:1, cuda:2 and cuda:3; PCIe across
// sockets between all others". Empty for fewer than two GPUs.
std::string LinksText(const HostTopology& topology);

}  // namespace tessera::control
