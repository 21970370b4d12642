// Opens and queries the device that a model runs on, by the name that a user gives.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device_runtime.h"

namespace tessera::control {
enum class Dtype;
}

namespace tessera::runtime {

at::ScalarType ScalarTypeOf(control::Dtype dtype);

// Returns the path of the CUDA plug-in, in the folder of this program, whether or not it exists.
std::string CudaPluginPath();

// Opens a device by a name that control::ParseDevice accepts. Returns InvalidArgument for any other name. CUDA is in a
// plug-in library that is loaded on first use and never unloaded; if that fails, returns ResourceExhausted (the status
// of an unavailable device), with a message that says which of plug-in, CUDA libraries, driver and device is missing. A
// CUDA device and a new stream of it become current for the calling thread.
absl::StatusOr<at::Device> OpenDevice(const std::string& name, const std::string& plugin = CudaPluginPath());

// Returns the identity of the hardware of that device, with the errors of OpenDevice. The device is not opened, and no
// memory of it is used.
absl::StatusOr<kernels::DeviceIdentity> IdentifyDevice(const std::string& name,
                                                       const std::string& plugin = CudaPluginPath());

// Sets how many CPU threads LibTorch computes with; 0: as many as this process may use.
void UseThreads(int threads);

// Call the functions of the device's table (kernels/device_runtime.h); the device must have been opened.
std::optional<kernels::DeviceMemory> ReadDeviceMemory(at::Device device);
bool DeviceWorks(at::Device device);
void ReleaseDeviceMemory(at::Device device);
void LimitDeviceMemory(at::Device device, int64_t bytes);

}  // namespace tessera::runtime
