// The C functions through which a worker opens the CUDA plug-in, libtessera_cuda.so. The worker itself is linked to
// no CUDA library beyond what libtorch_cpu needs, so it starts on a machine without a GPU. Loading the plug-in loads
// LibTorch's CUDA half, which registers its kernels for tensors of a CUDA device; the operators of kernels/ops.h run
// their reference compositions of those.
#pragma once

#include <cstddef>

namespace tessera::kernels {

inline constexpr char kCudaPluginName[] = "libtessera_cuda.so";

inline constexpr char kCudaPluginOpenName[] = "TesseraCudaOpen";
// Checks driver, device and LibTorch in this order, then makes the device and a stream of its own current for the
// calling thread, which is the one that computes. Returns 0; or another value after writing what is missing, for a
// user: text that continues "device is cuda; …", ended by a zero within `message_size` bytes. Throws nothing.
using CudaPluginOpen = int (*)(int device, char* message, size_t message_size);

// Bytes of the device's memory: those that nobody has taken, and all. Returns 0, or another value where the driver does
// not say. Throws nothing.
inline constexpr char kCudaPluginMemoryName[] = "TesseraCudaMemory";
using CudaPluginMemory = int (*)(int device, long long* free_bytes, long long* total_bytes);

}  // namespace tessera::kernels
