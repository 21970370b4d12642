// Binds a process to the processors of its GPU's NUMA node, whose memory the GPU reaches without crossing another
// socket. Linux; LibTorch-free.
#pragma once

#include <string>

namespace tessera::runtime {

// Binds all threads of this process, and thereby the threads that they start, to those processors of the NUMA node of
// the GPU at that PCI address that the calling thread may run on. Also makes the node's memory preferred for pages that
// the calling thread, and threads that it starts, touch first. Processors stay unchanged if the node is unknown or none
// of its processors is allowed; nothing changes if the environment has TESSERA_NUMA=off. Returns a line for the log
// that says what was done, or why not. Reads `root`/sys; a non-empty root is for tests.
std::string BindNearGpu(const std::string& pci_address, const std::string& root = "");

// Does the same for a device by its CUDA index.
std::string BindNearCudaDevice(int index);

}  // namespace tessera::runtime
