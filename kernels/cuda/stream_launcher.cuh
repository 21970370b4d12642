// StreamLauncher launches kernels on a stream. The functions that choose a kernel accept any such launcher, so that
// tests can run the choice and the kernel on the host.
#pragma once

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

class StreamLauncher final {
 public:
  explicit StreamLauncher(cudaStream_t stream) : stream_(stream) {}

  template <typename Arguments>
  cudaError_t operator()(void (*kernel)(Arguments), const LaunchShape& shape, const Arguments& arguments) const {
    kernel<<<dim3(shape.blocks, shape.blocks_y), shape.threads, shape.shared_bytes, stream_>>>(arguments);
    return cudaGetLastError();
  }

 private:
  const cudaStream_t stream_;
};

}  // namespace tessera::kernels::cuda
