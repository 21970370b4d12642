#include "kernels/cuda/plugin.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <exception>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/cuda/probe.h"
#include "kernels/cuda/runtime.h"

namespace tessera::kernels {
namespace {

constexpr char kOldestDriver[] = "580";  // the first driver for CUDA 13

// A message for the user; empty means no problem.
using Problem = std::string;

Problem FindDriver() {
  int driver = 0;
  const std::string needed =
      std::string("CUDA ") + CudaVersionText(CUDART_VERSION) + " needs driver " + kOldestDriver + " or newer";
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return "there is no NVIDIA driver on this machine; " + needed;
  }
  // A driver supports every CUDA release of its major version.
  if (driver / 1000 < CUDART_VERSION / 1000) {
    return "the NVIDIA driver is too old: it serves CUDA " + CudaVersionText(driver) + ", and " + needed;
  }
  return "";
}

Problem FindDevice(int device) {
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted == cudaErrorNoDevice || (counted == cudaSuccess && count == 0)) {
    return "the NVIDIA driver finds no GPU on this machine (CUDA_VISIBLE_DEVICES may hide GPUs)";
  }
  if (counted != cudaSuccess) {
    return std::string("the NVIDIA driver does not work: ") + cudaGetErrorString(counted);
  }
  if (device >= count) {
    return "there is no such GPU on this machine; valid values are " +
           (count == 1 ? std::string("cuda:0") : "cuda:0 to cuda:" + std::to_string(count - 1));
  }
  return "";
}

Problem TryDevice(int device, const cudaDeviceProp& gpu) {
  const cudaError_t probed = RunProbe(device);
  if (probed == cudaSuccess) return "";
  const std::string name = std::string("the GPU ") + gpu.name;
  if (probed == cudaErrorNoKernelImageForDevice) {
    return name + " is of architecture " + std::to_string(gpu.major) + std::to_string(gpu.minor) +
           ", and this plug-in is built for " TESSERA_CUDA_ARCHITECTURES
           " only; build it with CMAKE_CUDA_ARCHITECTURES set to that of the GPU";
  }
  return name + " cannot be used: " + cudaGetErrorString(probed);
}

// Sets the order in which LibTorch tries its attention kernels. cuDNN's kernel is the fastest on Hopper and Blackwell,
// and correct for every number of tokens from version 9.15.1 on. On other GPUs LibTorch's order is unchanged.
void PreferCudnnAttention(const cudaDeviceProp& gpu) {
  constexpr long kFirstGoodCudnn = 91501;
  if ((gpu.major != 9 && gpu.major != 10) || at::detail::getCUDAHooks().versionRuntimeCuDNN() < kFirstGoodCudnn) return;
  std::vector<int64_t> order;
  for (const at::SDPBackend backend :
       {at::SDPBackend::cudnn_attention, at::SDPBackend::flash_attention, at::SDPBackend::efficient_attention,
        at::SDPBackend::math, at::SDPBackend::overrideable}) {
    order.push_back(static_cast<int64_t>(backend));
  }
  at::globalContext().setSDPPriorityOrder(order);
}

Problem OpenLibTorch(int device, const cudaDeviceProp& gpu) {
  at::Context& context = at::globalContext();
  // LibTorch looks for its CUDA part once per process.
  if (!context.hasCUDA()) return "this worker has already computed without CUDA; start another worker";
  context.lazyInitDevice(at::kCUDA);
  const auto index = static_cast<c10::DeviceIndex>(device);
  c10::cuda::set_device(index, /*force=*/true);
  // One stream for the life of the process: memory that LibTorch caches belongs to the stream on which it was used.
  static std::map<c10::DeviceIndex, c10::cuda::CUDAStream> streams;
  const auto [stream, is_new] =
      streams.try_emplace(index, c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index));
  c10::cuda::setCurrentCUDAStream(stream->second);
  // fp32 products are computed in fp32, not TF32, and a seed gives the same image in every run.
  context.setAllowTF32CuBLAS(false);
  context.setAllowTF32CuDNN(false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  PreferCudnnAttention(gpu);
  at::ones({1}, at::Device(at::kCUDA, index)).add_(1).item<float>();  // first allocation and first kernel
  return "";
}

Problem Open(int device) {
  for (const Problem& problem : {FindDriver(), FindDevice(device)}) {
    if (!problem.empty()) return problem;
  }
  cudaDeviceProp gpu;
  if (const cudaError_t read = cudaGetDeviceProperties(&gpu, device); read != cudaSuccess) {
    return std::string("the GPU cannot be used: ") + cudaGetErrorString(read);
  }
  if (Problem problem = TryDevice(device, gpu); !problem.empty()) return problem;
  try {
    return OpenLibTorch(device, gpu);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();  // advice for programmers follows the first line
    return std::string("LibTorch cannot use the GPU ") + gpu.name + ": " + text.substr(0, text.find('\n'));
  }
}

Problem OpenCuda(int device) noexcept {
  try {
    return Open(device);
  } catch (const std::exception& error) {
    return std::string("LibTorch cannot use it: ") + error.what();
  }
}

Problem Identify(int device, DeviceIdentity& identity) noexcept {
  for (const Problem& problem : {FindDriver(), FindDevice(device)}) {
    if (!problem.empty()) return problem;
  }
  try {
    identity = IdentifyCudaDevice(device);
    return "";
  } catch (const std::exception& error) {
    return std::string("LibTorch does not know it: ") + error.what();
  }
}

constexpr DeviceRuntime kCudaRuntime = {.find = FindCudaDevice,
                                        .open = OpenCuda,
                                        .identify = Identify,
                                        .read_memory = ReadCudaMemory,
                                        .release_cache = ReleaseCudaCache,
                                        .limit_memory = LimitCudaMemory,
                                        .works = CudaDeviceWorks,
                                        .record_mark = RecordCudaMark,
                                        .is_reached = IsCudaMarkReached,
                                        .wait = WaitForCudaMark,
                                        .seconds_between = SecondsBetweenCudaMarks,
                                        .destroy_mark = DestroyCudaMark,
                                        .pinned_memory = CudaPinnedMemory,
                                        .begin_capture = BeginCudaCapture,
                                        .end_capture = EndCudaCapture,
                                        .graph_bytes = CudaGraphBytes,
                                        .launch = LaunchCudaGraph,
                                        .destroy_graph = DestroyCudaGraph,
                                        .is_capturing = IsCudaCapturing,
                                        .card = CudaCard,
                                        .current_stream = CurrentCudaStream,
                                        .side_stream = SideCudaStream,
                                        .wait_for_stream = WaitForCudaStream,
                                        .nccl = CudaNccl};

}  // namespace

extern "C" const DeviceRuntime* TesseraCudaRuntime(int version, int* own_version) {
  *own_version = kDeviceRuntimeVersion;
  return version == kDeviceRuntimeVersion ? &kCudaRuntime : nullptr;
}

static_assert(std::is_same_v<decltype(&TesseraCudaRuntime), CudaPluginRuntime>);

}  // namespace tessera::kernels
