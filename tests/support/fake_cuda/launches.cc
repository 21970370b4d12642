// Fakes the kernels that libraries register with cudart, and their launches.
#include <cuda_runtime_api.h>

#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>

#include "tests/support/fake_cuda/capture.h"
#include "tests/support/fake_cuda/machine.h"
#include "tests/support/fake_cuda/module_images.h"

namespace tessera::fake_cuda {
namespace {

struct Kernel {
  const char* name = "";
  const ModuleImages* module = nullptr;  // null if the kernel belongs to no module
  long number = 0;                       // 0: not launched yet
  bool has_code = true;                  // that the card can run
  LazyCode code;
  size_t most_shared_bytes = 48 << 10;  // per block, until the kernel is given more
};

struct Launch {
  dim3 grid, block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

// Tens of thousands register while LibTorch is loaded.
struct Kernels {
  std::mutex mutex;
  std::unordered_map<const void*, Kernel> by_function;
  long last_number = 0;
};

Kernels& TheKernels() {
  static auto* kernels = new Kernels();
  return *kernels;
}

// Looks up the kernel and loads it if the device does not have it yet.
cudaError_t Find(const void* function, Kernel& found) {
  Kernels& kernels = TheKernels();
  const std::lock_guard lock(kernels.mutex);
  Kernel& kernel = kernels.by_function[function];
  if (kernel.number == 0) {
    kernel.number = ++kernels.last_number;
    const Options& card = TheMachine().options();
    kernel.has_code = kernel.module == nullptr || kernel.module->Serve(10 * card.major + card.minor);
    TheMachine().log().Write("name", kernel.number, kernel.name);
  }
  const cudaError_t loaded = kernel.has_code ? Load(kernel.code, kernel.name) : cudaErrorNoKernelImageForDevice;
  found = kernel;
  return loaded;
}

// The plug-in's probe passes only if the device really computes: the squares of 0 to 63 in an array of int.
void ComputeProbe(void** arguments) {
  int squares[64];
  for (int i = 0; i < 64; ++i) squares[i] = i * i;
  TheMachine().SetContent(*static_cast<void**>(arguments[0]),
                          std::string(reinterpret_cast<const char*>(squares), sizeof(squares)));
}

bool IsProbe(const char* name) {
  return std::strstr(name, "tessera") != nullptr && std::strstr(name, "Square") != nullptr;
}

// Checks a launch against the limits of a Hopper card.
cudaError_t CheckLaunch(const Launch& launch, const Kernel& kernel) {
  constexpr unsigned kMostThreads = 1024, kMostDepth = 64, kMostBlocks = 2147483647, kMostRows = 65535;
  const auto within = [](unsigned number, unsigned most) { return number >= 1 && number <= most; };
  const bool block = within(launch.block.x, kMostThreads) && within(launch.block.y, kMostThreads) &&
                     within(launch.block.z, kMostDepth) &&
                     within(launch.block.x * launch.block.y * launch.block.z, kMostThreads);
  const bool grid =
      within(launch.grid.x, kMostBlocks) && within(launch.grid.y, kMostRows) && within(launch.grid.z, kMostRows);
  if (!block || !grid) return cudaErrorInvalidConfiguration;
  return launch.shared_bytes > kernel.most_shared_bytes ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t Issue(const void* function, const Launch& launch, void** arguments) {
  if (!TheMachine().CountLaunch()) return Finish("cudaLaunchKernel", cudaErrorIllegalAddress);
  Kernel kernel;
  if (const cudaError_t found = Find(function, kernel); found != cudaSuccess) return Finish("cudaLaunchKernel", found);
  if (const cudaError_t valid = CheckLaunch(launch, kernel); valid != cudaSuccess) {
    return Finish("cudaLaunchKernel", valid);
  }
  const unsigned blocks = launch.grid.x * launch.grid.y * launch.grid.z;
  const unsigned threads = launch.block.x * launch.block.y * launch.block.z;
  const bool is_probe = IsProbe(kernel.name);
  if (is_probe) ComputeProbe(arguments);
  TheMachine().log().Write("kernel",
                           is_probe ? 0 : Record(kernel.name, launch.stream, Work::Kernel(int64_t{blocks} * threads)),
                           kernel.number, blocks, threads);
  return Finish("cudaLaunchKernel");
}

Launch& PushedLaunch() {
  thread_local Launch launch;
  return launch;
}

}  // namespace
}  // namespace tessera::fake_cuda

using namespace tessera::fake_cuda;  // NOLINT(build/namespaces): what follows are CUDA's own functions

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  return reinterpret_cast<void**>(new ModuleImages(wrapper));  // the module's handle, which is never deleted
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

void __cudaRegisterFunction(void** module, const char* function, char*, const char* name, int, void*, void*, void*,
                            void*, int*) {
  Kernels& kernels = TheKernels();
  const std::lock_guard lock(kernels.mutex);
  kernels.by_function[function] = {.name = name, .module = reinterpret_cast<const ModuleImages*>(module)};
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return Finish("__cudaGetKernel");
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, CUstream_st* stream) {
  PushedLaunch() = {.grid = grid, .block = block, .shared_bytes = shared_bytes, .stream = stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  const Launch& launch = PushedLaunch();
  *grid = launch.grid;
  *block = launch.block;
  *shared_bytes = launch.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = launch.stream;
  return Finish("__cudaPopCallConfiguration");
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                             cudaStream_t stream) {
  return Issue(function, {.grid = grid, .block = block, .shared_bytes = shared, .stream = stream}, arguments);
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                                        cudaStream_t stream) {
  return Issue(function, {.grid = grid, .block = block, .shared_bytes = shared, .stream = stream}, arguments);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return Issue(function,
               {.grid = config->gridDim,
                .block = config->blockDim,
                .shared_bytes = config->dynamicSmemBytes,
                .stream = config->stream},
               arguments);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t stream) {
  return Issue(kernel, {.grid = grid, .block = block, .shared_bytes = shared, .stream = stream}, arguments);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  TheMachine().log().Write("host_function", Record("cudaLaunchHostFunc", stream, {.nanoseconds = 0}));
  function(data);
  return Finish("cudaLaunchHostFunc");
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  *attributes = {};
  Kernel kernel;
  // LibTorch asks here whether there is code for the card, and trusts the answer.
  if (Find(function, kernel) == cudaErrorStreamCaptureUnsupported) {
    return Finish("cudaFuncGetAttributes", cudaErrorStreamCaptureUnsupported);
  }
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 10 * TheMachine().options().major + TheMachine().options().minor;
  return Finish("cudaFuncGetAttributes");
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  constexpr int kMostSharedBytes = 227 << 10;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return Finish("cudaFuncSetAttribute");
  if (value < 0 || value > kMostSharedBytes) return Finish("cudaFuncSetAttribute", cudaErrorInvalidValue);
  Kernels& kernels = TheKernels();
  {
    const std::lock_guard lock(kernels.mutex);
    kernels.by_function[function].most_shared_bytes = static_cast<size_t>(value);
  }
  return Finish("cudaFuncSetAttribute");
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
  *blocks = 2;
  return Finish("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags");
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                          size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, 0);
}

}  // extern "C"
