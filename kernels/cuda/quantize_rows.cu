#include "kernels/cuda/quantize_rows.cuh"
#include "kernels/cuda/stream_launcher.cuh"

namespace tessera::kernels::cuda {

cudaError_t LaunchQuantizeRows(const QuantizeRowsArguments& arguments, cudaStream_t stream) {
  return RunQuantizeRows(arguments, StreamLauncher(stream));
}

}  // namespace tessera::kernels::cuda
