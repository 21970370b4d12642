// GpuDriver returns what NVIDIA's driver reports about the GPUs that this process sees. It needs no CUDA libraries: it
// loads the driver's own two libraries if they are installed. LibTorch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::control {

struct DriverGpu {
  std::string pci_address;    // in the form of base::PciAddress
  std::string uuid;           // "GPU-…" as nvidia-smi -L prints it; for a part of a GPU, the part's UUID
  uint64_t memory_bytes = 0;  // 0: unknown
};

// An interface, so that tests need no driver.
class GpuDriver {
 public:
  virtual ~GpuDriver() = default;

  // The GPUs in the order of CUDA's indices: those in CUDA_VISIBLE_DEVICES in its order, if it is set. Unavailable,
  // with a message for users about what is missing.
  virtual absl::StatusOr<std::vector<DriverGpu>> Gpus() = 0;

  // Whether two GPUs access each other's memory over NVLink, directly or through NVSwitch. Errors as for Gpus.
  virtual absl::StatusOr<bool> HaveNvlink(const std::string& pci_address, const std::string& other) = 0;
};

struct GpuDriverFiles {
  std::string cuda = "libcuda.so.1";
  std::string nvml = "libnvidia-ml.so.1";  // NVIDIA's management library
};

// Loads the libraries on the first call of a method.
std::unique_ptr<GpuDriver> MakeGpuDriver(const GpuDriverFiles& files = {});

}  // namespace tessera::control
