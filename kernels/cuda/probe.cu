#include "kernels/cuda/probe.h"

namespace tessera::kernels {
namespace {

constexpr int kThreads = 64;

__global__ void Square(int* out) { out[threadIdx.x] = static_cast<int>(threadIdx.x * threadIdx.x); }

}  // namespace

cudaError_t RunProbe(int device) {
  cudaError_t error = cudaSetDevice(device);
  int* squares = nullptr;
  if (error == cudaSuccess) error = cudaMalloc(&squares, kThreads * sizeof(int));
  if (error != cudaSuccess) return error;
  Square<<<1, kThreads>>>(squares);
  error = cudaGetLastError();
  int found[kThreads] = {};
  if (error == cudaSuccess) error = cudaMemcpy(found, squares, sizeof(found), cudaMemcpyDeviceToHost);
  const cudaError_t freed = cudaFree(squares);
  if (error != cudaSuccess) return error;
  for (int i = 0; i < kThreads; ++i) {
    if (found[i] != i * i) return cudaErrorUnknown;
  }
  return freed;
}

}  // namespace tessera::kernels
