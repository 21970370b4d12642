// Holds the DeviceRuntime table of each kind of device in this process (kernels/device_runtime.h).
#pragma once

#include <c10/core/Device.h>

#include "kernels/device_runtime.h"

namespace tessera::kernels {

// Sets the table of a kind of device and replaces any earlier one, as LibTorch does with allocators. `runtime` must
// outlive its use.
void SetDeviceRuntime(c10::DeviceType type, const DeviceRuntime& runtime);

// Throws c10::Error if no table has been set for this kind of device.
const DeviceRuntime& DeviceRuntimeOf(c10::DeviceType type);

}  // namespace tessera::kernels
