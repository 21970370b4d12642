// The tables of the kinds of devices there are in this process (kernels/device_runtime.h).
#pragma once

#include <c10/core/Device.h>

#include "kernels/device_runtime.h"

namespace tessera::kernels {

// As LibTorch has an allocator for a kind of device: one, of who set it last. `runtime` outlives its use.
void SetDeviceRuntime(c10::DeviceType type, const DeviceRuntime& runtime);

// Throws c10::Error for a kind of device that nobody has set one for.
const DeviceRuntime& DeviceRuntimeOf(c10::DeviceType type);

}  // namespace tessera::kernels
