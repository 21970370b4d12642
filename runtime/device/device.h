// Where a model runs, by the name a user gives it.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "control/placement.h"

namespace tessera::runtime {

at::ScalarType ScalarTypeOf(control::Dtype dtype);

// The file of the CUDA plug-in, whether it is there or not: beside this program.
std::string CudaPluginPath();

// cpu, cuda, cuda:N. InvalidArgument for another name. CUDA lives in a plug-in library that is loaded here, on first
// use, and stays; ResourceExhausted (the status of a device that is not available) says which of plug-in, CUDA
// libraries, driver and device is missing. A CUDA device and a stream of its own become current for the calling thread.
absl::StatusOr<at::Device> OpenDevice(const std::string& name, const std::string& plugin = CudaPluginPath());

struct DeviceMemory {
  int64_t total = 0;
  int64_t free = 0;  // can still be had
};

// Bytes of an opened device's own memory; nothing for the host, and where nobody can tell.
std::optional<DeviceMemory> ReadDeviceMemory(at::Device device, const std::string& plugin = CudaPluginPath());

// Whether the device still works. It does after it had no memory for something, and never again in this
// process after an error of its own (an address that is not there, memory that is broken). Waits for the device.
bool DeviceWorks(at::Device device);

// Gives back the memory that is kept for tensors to come.
void ReleaseDeviceMemory(at::Device device);

}  // namespace tessera::runtime
