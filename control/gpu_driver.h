// What NVIDIA's driver says of the GPUs that this process sees, without CUDA's libraries: the driver's own two are
// loaded where they are installed. LibTorch-free.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::control {

struct DriverGpu {
  std::string pci_address;  // as base::PciAddress has it
  std::string uuid;         // "GPU-…", as nvidia-smi -L calls it; of a part of a GPU, its own number
};

// Tests have one without a driver.
class GpuDriver {
 public:
  virtual ~GpuDriver() = default;

  // By CUDA's index: those of CUDA_VISIBLE_DEVICES in its order, where that is set. Unavailable with what is missing,
  // for a user.
  virtual absl::StatusOr<std::vector<DriverGpu>> Gpus() = 0;

  // Whether two GPUs reach each other's memory over NVLink, through switches of it or not. Errors as of Gpus.
  virtual absl::StatusOr<bool> HaveNvlink(const std::string& pci_address, const std::string& other) = 0;
};

struct GpuDriverFiles {
  std::string cuda = "libcuda.so.1";
  std::string nvml = "libnvidia-ml.so.1";  // NVIDIA's management library
};

// Loads nothing before it is asked.
std::unique_ptr<GpuDriver> MakeGpuDriver(const GpuDriverFiles& files = {});

}  // namespace tessera::control
