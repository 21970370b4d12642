// Lists the InfiniBand devices of this machine, and those for RDMA over Ethernet, which the kernel lists with them.
// Linux only; does not use LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::base {

struct InfinibandPort {
  std::string device;  // "mlx5_0"
  int32_t port = 1;
  bool active = false;     // it has a link and is configured in its network
  std::string state;       // as the kernel writes it, "4: ACTIVE"
  std::string link_layer;  // "InfiniBand" or "Ethernet"
  std::string rate;        // "400 Gb/sec (4X NDR)"; may be empty
  std::optional<int32_t> numa_node;
};

// Returns the ports by device and port, from `root`/sys; tests use a root that is not empty. Ports with malformed files
// are omitted; `problems` receives a sentence about each.
std::vector<InfinibandPort> ReadInfinibandPorts(std::vector<std::string>& problems, const std::string& root = "");

}  // namespace tessera::base
