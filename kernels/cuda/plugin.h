// The C function through which a worker opens the CUDA plug-in, libtessera_cuda.so. The worker itself is linked to no
// CUDA library beyond what libtorch_cpu needs, so it starts on a machine without a GPU. Loading the plug-in loads
// LibTorch's CUDA half, which registers its kernels for tensors of a CUDA device; the operators of kernels/ops.h run
// the kernels of this folder, or their reference compositions of LibTorch's.
#pragma once

#include "kernels/device_runtime.h"

namespace tessera::kernels {

inline constexpr char kCudaPluginName[] = "libtessera_cuda.so";

inline constexpr char kCudaPluginRuntimeName[] = "TesseraCudaRuntime";
// The plug-in's table where that is of this version, else null; `own_version` is set in any case. It stays as it is in
// every version of the plug-in. Throws nothing.
using CudaPluginRuntime = const DeviceRuntime* (*)(int version, int* own_version);

}  // namespace tessera::kernels
