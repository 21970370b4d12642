// Where a PCI device sits in this machine: behind which bridges, near which memory. Linux; LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::base {

struct PciPlace {
  // From the root complex down to the device: "pci0000:3a", "0000:3a:00.0" (the root port), then the bridges of
  // switches, if there are any, and the device itself. Never empty.
  std::vector<std::string> path;
  std::optional<int32_t> numa_node;  // the kernel knows it; it need not be one that is there
};

// As /sys names it, "0000:3d:00.0": CUDA and NVML write capitals, and a domain of eight digits. Nothing for a text that
// is no address.
std::optional<std::string> PciAddress(std::string_view text);

// Nothing where the kernel shows no device of that address, or not as a kernel does. Reads `root`/sys; a root other
// than the empty one is for tests.
std::optional<PciPlace> ReadPciPlace(const std::string& address, const std::string& root = "");

// The NUMA node in a file of /sys, which is -1 where the kernel knows none.
std::optional<int32_t> ReadNumaNode(const std::string& path);

}  // namespace tessera::base
