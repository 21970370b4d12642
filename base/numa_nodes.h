// The NUMA nodes of this machine: which processors are near which memory. Linux; LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::base {

struct NumaNode {
  int32_t number = 0;
  std::vector<int32_t> processors;  // rising; empty for a node of memory alone
  std::optional<int32_t> socket;    // of its first processor; a socket may have several nodes
};

// Rising by number, from `root`/sys; a root other than the empty one is for tests. A node whose files are not what the
// kernel writes is left out. Empty where the kernel knows of no nodes.
std::vector<NumaNode> ReadNumaNodes(const std::string& root = "");

// "0-31,64" as the kernel writes it, rising; nothing for another text, and for numbers that no machine has.
std::optional<std::vector<int32_t>> ParseProcessorList(std::string_view text);
// The other way.
std::string ProcessorListText(const std::vector<int32_t>& processors);

}  // namespace tessera::base
