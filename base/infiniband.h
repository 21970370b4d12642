// The InfiniBand devices of this machine, and those for RDMA over Ethernet, which the kernel lists with them. Linux;
// LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::base {

struct InfinibandPort {
  std::string device;  // "mlx5_0"
  int32_t port = 1;
  bool active = false;     // it has a link, and its network has taken it in
  std::string state;       // as the kernel has it, "4: ACTIVE"
  std::string link_layer;  // "InfiniBand" or "Ethernet"
  std::string rate;        // "400 Gb/sec (4X NDR)"; may be empty
  std::optional<int32_t> numa_node;
};

// By device and port, from `root`/sys; a root other than the empty one is for tests. Ports whose files are not what the
// kernel writes are left out; `problems` says which, a sentence for each.
std::vector<InfinibandPort> ReadInfinibandPorts(std::vector<std::string>& problems, const std::string& root = "");

}  // namespace tessera::base
