// Determines whether the NVIDIA driver of this host supports CUDA 13.0, either directly or through cuda-compat 13.0.
// That is NVIDIA's user-mode driver of a later release, which works with older drivers on data-centre cards only.
// LibTorch-free.
#pragma once

#include <string>
#include <vector>

namespace tessera::control {

struct NvidiaDriver {
  std::string version;             // "570.124.06"; empty: no driver is loaded, or the kernel does not show it
  std::vector<std::string> cards;  // models visible to this process or container, such as "NVIDIA H100 80GB HBM3"
};

// Reads `root`/sys/module/nvidia and `root`/proc/driver/nvidia. `root` is not empty in tests only.
NvidiaDriver ReadNvidiaDriver(const std::string& root = "");

enum class DriverFit {
  kUnknown,  // no version was found
  kServes,   // 580 or newer
  kCompat,   // 535 to 579 with data-centre cards only: supported if cuda-compat 13.0 is installed
  kTooOld,
};
DriverFit FitOf(const NvidiaDriver& driver);

// The folder of cuda-compat 13.0 in the installed tree of this program (PREFIX/lib/cuda-compat for PREFIX/bin/NAME);
// empty if there is none.
std::string CudaCompatOf(const std::string& program);

// If `driver` needs cuda-compat and the program's installed tree has it, sets LD_LIBRARY_PATH so that child processes
// load its user-mode driver. Call it before other threads are started.
void UseCudaCompat(const NvidiaDriver& driver, const std::string& program);

}  // namespace tessera::control
