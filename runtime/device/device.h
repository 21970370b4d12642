// Where a model runs, by the name a user gives it.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "control/placement.h"
#include "kernels/device_runtime.h"

namespace tessera::runtime {

at::ScalarType ScalarTypeOf(control::Dtype dtype);

// The file of the CUDA plug-in, whether it is there or not: beside this program.
std::string CudaPluginPath();

// A device as control::ParseDevice takes it. InvalidArgument for another name. CUDA lives in a plug-in library that is
// loaded here, on first use, and stays; ResourceExhausted (the status of a device that is not available) says which of
// plug-in, CUDA libraries, driver and device is missing. A CUDA device and a stream of its own become current for the
// calling thread.
absl::StatusOr<at::Device> OpenDevice(const std::string& name, const std::string& plugin = CudaPluginPath());

// What computes on a device of that name, errors as of OpenDevice. The device is not opened, and has no less memory.
absl::StatusOr<kernels::DeviceIdentity> IdentifyDevice(const std::string& name,
                                                       const std::string& plugin = CudaPluginPath());

// What the device's own table says of it (kernels/device_runtime.h); the device is an opened one.
std::optional<kernels::DeviceMemory> ReadDeviceMemory(at::Device device);
bool DeviceWorks(at::Device device);
void ReleaseDeviceMemory(at::Device device);

}  // namespace tessera::runtime
