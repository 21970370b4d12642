// Locates a PCI device in this machine: the bridges above it and the memory near it. Linux only; does not use LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::base {

struct PciPlace {
  // From the root complex down to the device: "pci0000:3a", "0000:3a:00.0" (the root port), then the bridges of
  // switches, if any, and the device itself. Never empty.
  std::vector<std::string> path;
  std::optional<int32_t> numa_node;  // as reported by the kernel; the node need not exist
};

// Returns the address in the format of /sys, "0000:3d:00.0"; CUDA and NVML use capital letters and a domain of eight
// digits. Returns nothing for a text that is not an address.
std::optional<std::string> PciAddress(std::string_view text);

// Returns nothing if the kernel reports no device with that address, or reports it in a malformed way. Reads
// `root`/sys; tests use a root that is not empty.
std::optional<PciPlace> ReadPciPlace(const std::string& address, const std::string& root = "");

// Returns the NUMA node in a file of /sys; nothing if it is -1, which means unknown.
std::optional<int32_t> ReadNumaNode(const std::string& path);

}  // namespace tessera::base
