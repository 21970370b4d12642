// The C function through which a worker opens the CUDA plug-in, libtessera_cuda.so. The worker itself is linked to no
// CUDA library except those that libtorch_cpu needs, so it starts on a machine without a GPU. Loading the plug-in loads
// LibTorch's CUDA part, which registers its kernels for CUDA tensors. The operators of kernels/ops.h then run the
// kernels of this folder, or their reference compositions of LibTorch's kernels.
#pragma once

#include "kernels/device_runtime.h"

namespace tessera::kernels {

inline constexpr char kCudaPluginName[] = "libtessera_cuda.so";

inline constexpr char kCudaPluginRuntimeName[] = "TesseraCudaRuntime";
// Returns the plug-in's table if its version is `version`, else null. Sets `own_version` in any case. This signature is
// the same in every version of the plug-in. Does not throw.
using CudaPluginRuntime = const DeviceRuntime* (*)(int version, int* own_version);

}  // namespace tessera::kernels
