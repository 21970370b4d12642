// Keeps a process near its GPU: on the processors of the GPU's NUMA node, whose memory the GPU reaches without passing
// through another socket. Linux; LibTorch-free.
#pragma once

#include <string>

namespace tessera::runtime {

// Binds all threads of this process, and with them those that they start, to the processors of the node of the GPU at
// that PCI address, of those that the calling thread may run on; and prefers the node's memory for what the calling
// thread, and threads that it starts, touch first. Processors stay as they are where the node is not known, or none of
// its processors is allowed, and all of it where TESSERA_NUMA is "off" in the environment. Returns a line for the log:
// what was done, or why not. Reads `root`/sys; a root other than the empty one is for tests.
std::string BindNearGpu(const std::string& pci_address, const std::string& root = "");

// The same for a device by CUDA's index.
std::string BindNearCudaDevice(int index);

}  // namespace tessera::runtime
