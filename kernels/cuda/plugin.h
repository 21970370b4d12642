// The one C function through which a worker opens the CUDA plug-in, libtessera_cuda.so. The worker itself is linked to
// no CUDA library beyond what libtorch_cpu needs, so it starts on a machine without a GPU.
#pragma once

#include <cstddef>

namespace tessera {

inline constexpr char kCudaPluginName[] = "libtessera_cuda.so";
inline constexpr char kCudaPluginOpenName[] = "TesseraCudaOpen";

// Checks driver and device and makes the device current. Returns 0, or another value after writing a message for the
// user, which says what is missing.
using CudaPluginOpen = int (*)(int device, char* message, size_t message_size);

}  // namespace tessera
