// Whether the NVIDIA driver of this host serves CUDA 13.0: by itself, or through cuda-compat 13.0, NVIDIA's user-mode
// driver of a later release, which works above older drivers on data-centre cards only. LibTorch-free.
#pragma once

#include <string>
#include <vector>

namespace tessera::control {

struct NvidiaDriver {
  std::string version;             // "570.124.06"; empty: none is loaded, or the kernel does not show it
  std::vector<std::string> cards;  // models that this process or container sees, such as "NVIDIA H100 80GB HBM3"
};

// Reads `root`/sys/module/nvidia and `root`/proc/driver/nvidia; a root other than the empty one is for tests.
NvidiaDriver ReadNvidiaDriver(const std::string& root = "");

enum class DriverFit {
  kUnknown,  // there is no version
  kServes,   // 580 or newer
  kCompat,   // 535 to 579 with data-centre cards alone: served where cuda-compat 13.0 is installed
  kTooOld,
};
DriverFit FitOf(const NvidiaDriver& driver);

// The installed cuda-compat 13.0 of an installed tree with this program (PREFIX/bin/NAME: PREFIX/lib/cuda-compat);
// empty where there is none.
std::string CudaCompatOf(const std::string& program);

// Lets the processes that this one starts load the user-mode driver of cuda-compat, by LD_LIBRARY_PATH, where `driver`
// asks for it and the tree of this program has it. Call it before there are other threads.
void UseCudaCompat(const NvidiaDriver& driver, const std::string& program);

}  // namespace tessera::control
