// Lists the NUMA nodes of this machine, with the processors near each memory. Linux only; does not use LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::base {

struct NumaNode {
  int32_t number = 0;
  std::vector<int32_t> processors;  // ascending; empty for a node with memory only
  std::optional<int32_t> socket;    // of its first processor; a socket may have several nodes
};

// Returns the nodes in ascending order, from `root`/sys; tests use a root that is not empty. A node with malformed
// files is omitted. Empty if the kernel reports no nodes.
std::vector<NumaNode> ReadNumaNodes(const std::string& root = "");

// Parses "0-31,64", the format of the kernel, in ascending order. Returns nothing for other texts and for numbers that
// exceed those of any machine.
std::optional<std::vector<int32_t>> ParseProcessorList(std::string_view text);
// The inverse of ParseProcessorList.
std::string ProcessorListText(const std::vector<int32_t>& processors);

}  // namespace tessera::base
