// Fakes devices, memory and copies of the CUDA runtime.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/support/fake_cuda/capture.h"
#include "tests/support/fake_cuda/machine.h"

namespace tessera::fake_cuda {
namespace {

// Returns the properties of a Hopper card. Properties that differ between cards and matter are options.
cudaDeviceProp Properties(int device) {
  const Options& options = TheMachine().options();
  cudaDeviceProp card = {};
  std::snprintf(card.name, sizeof(card.name), "Fake GPU sm_%d%d", options.major, options.minor);
  for (char& byte : card.uuid.bytes) byte = static_cast<char>(0x10 + device);
  card.major = options.major;
  card.minor = options.minor;
  card.totalGlobalMem = options.memory_bytes;
  card.multiProcessorCount = 132;
  card.maxThreadsPerBlock = 1024;
  card.maxThreadsPerMultiProcessor = 2048;
  card.maxBlocksPerMultiProcessor = 32;
  card.warpSize = 32;
  card.sharedMemPerBlock = 48 << 10;
  card.sharedMemPerBlockOptin = 227 << 10;
  card.sharedMemPerMultiprocessor = 228 << 10;
  card.regsPerBlock = card.regsPerMultiprocessor = 64 << 10;
  card.maxGridSize[0] = 2147483647;
  card.maxGridSize[1] = card.maxGridSize[2] = 65535;
  card.maxThreadsDim[0] = card.maxThreadsDim[1] = 1024;
  card.maxThreadsDim[2] = 64;
  card.l2CacheSize = 50 << 20;
  card.textureAlignment = 512;
  card.concurrentKernels = 1;
  card.asyncEngineCount = 3;
  card.unifiedAddressing = 1;
  card.pciBusID = 16 + device;
  return card;
}

struct CopyKind {
  bool to_device = false, from_device = false, pinned = false;

  const char* direction() const { return to_device ? (from_device ? "D2D" : "H2D") : (from_device ? "D2H" : "H2H"); }
  Work work(size_t bytes) const {
    const auto number = static_cast<int64_t>(bytes);
    if (to_device == from_device) return Work::Copy(number);
    return Work::Transfer(pageable() ? Engine::kPageable : to_device ? Engine::kToDevice : Engine::kToHost, number);
  }
  bool pageable() const { return !pinned && to_device != from_device; }
};

CopyKind KindOf(const void* to, const void* from) {
  Machine& machine = TheMachine();
  CopyKind kind{.to_device = machine.device_memory().Find(to).has_value(),
                .from_device = machine.device_memory().Find(from).has_value()};
  kind.pinned = machine.pinned_memory().Find(kind.to_device ? from : to).has_value();
  return kind;
}

// Waits for the device if the copy is synchronous or its memory pageable.
cudaError_t Copy(const char* function, void* to, const void* from, size_t bytes, cudaStream_t stream, bool async) {
  Machine& machine = TheMachine();
  const CopyKind kind = KindOf(to, from);
  machine.log().Write("copy", async ? Record(function, stream, kind.work(bytes)) : 0, kind.direction(), bytes,
                      kind.pageable() ? "pageable" : "pinned", async ? "async" : "sync");
  if (!async) machine.log().Write("wait", function);
  if (const cudaError_t error = async && !kind.pageable() ? cudaSuccess : CheckUnsafe(Unsafe::kWait, stream);
      error != cudaSuccess) {
    return Finish(function, error);
  }
  if (!async) card_clock::WaitUntil(std::max(EndOfDevice(), card_clock::Now()) + kind.work(bytes).nanoseconds);
  if (async && kind.pageable()) card_clock::WaitUntil(EndOf(stream));
  if (kind.from_device && !kind.to_device) {
    const std::string content = machine.ContentAt(from, bytes);
    std::memcpy(to, content.data(), bytes);
  } else if (!kind.from_device && !kind.to_device) {
    std::memcpy(to, from, bytes);
  }
  return Finish(function);
}

}  // namespace
}  // namespace tessera::fake_cuda

using namespace tessera::fake_cuda;  // NOLINT(build/namespaces): what follows are CUDA's own functions

extern "C" {

// Every stub calls this (make_stubs.py).
void FakeCudaStub(const char* function) { TheMachine().log().Write("stub", function); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = TheMachine().options().devices;
  return FinishWithoutContext("cudaGetDeviceCount");
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = TheMachine().options().driver;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = CurrentDevice();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= TheMachine().options().devices) return Finish("cudaSetDevice", cudaErrorInvalidDevice);
  CurrentDevice() = device;
  return Finish("cudaSetDevice");
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = LastError();
  if (!TheMachine().failed()) LastError() = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return LastError(); }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    default:
      return "an error of the fake CUDA";
  }
}

const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= TheMachine().options().devices) {
    return FinishWithoutContext("cudaGetDeviceProperties", cudaErrorInvalidDevice);
  }
  *properties = Properties(device);
  return FinishWithoutContext("cudaGetDeviceProperties");
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const cudaDeviceProp card = Properties(device);
  const std::pair<cudaDeviceAttr, int> values[] = {
      {cudaDevAttrMultiProcessorCount, card.multiProcessorCount},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, static_cast<int>(card.sharedMemPerBlockOptin)},
      {cudaDevAttrMaxSharedMemoryPerBlock, static_cast<int>(card.sharedMemPerBlock)},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, static_cast<int>(card.sharedMemPerMultiprocessor)},
      {cudaDevAttrMaxThreadsPerBlock, card.maxThreadsPerBlock},
      {cudaDevAttrMaxThreadsPerMultiProcessor, card.maxThreadsPerMultiProcessor},
      {cudaDevAttrL2CacheSize, card.l2CacheSize},
      {cudaDevAttrComputeCapabilityMajor, card.major},
      {cudaDevAttrComputeCapabilityMinor, card.minor}};
  *value = 1;
  for (const auto& [known, number] : values) {
    if (attribute == known) *value = number;
  }
  return FinishWithoutContext("cudaDeviceGetAttribute");
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", 16 + device);
  return FinishWithoutContext("cudaDeviceGetPCIBusId");
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return FinishWithoutContext("cudaDeviceGetStreamPriorityRange");
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return FinishWithoutContext("cudaDeviceCanAccessPeer");
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return Finish("cudaDeviceEnablePeerAccess"); }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = TheMachine().FreeBytes(CurrentDevice());
  *total = TheMachine().options().memory_bytes;
  return Finish("cudaMemGetInfo");
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = nullptr;
  if (const cudaError_t error = CheckUnsafe(Unsafe::kAllocation, nullptr); error != cudaSuccess) {
    return Finish("cudaMalloc", error);
  }
  *memory = TheMachine().Allocate(bytes, CurrentDevice());
  return Finish("cudaMalloc", *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return Finish("cudaFree");
  if (const cudaError_t error = CheckUnsafe(Unsafe::kAllocation, nullptr); error != cudaSuccess) {
    return Finish("cudaFree", error);
  }
  return Finish("cudaFree", TheMachine().Free(memory) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = nullptr;
  if (const cudaError_t error = CheckUnsafe(Unsafe::kAllocation, nullptr); error != cudaSuccess) {
    return Finish("cudaHostAlloc", error);
  }
  Machine& machine = TheMachine();
  if (machine.pinned_memory().Bytes() + bytes > machine.options().pinned_bytes) {
    return Finish("cudaHostAlloc", cudaErrorMemoryAllocation);
  }
  constexpr size_t kPage = 4096;
  *memory = std::aligned_alloc(kPage, (bytes + kPage) / kPage * kPage);
  machine.pinned_memory().Add(*memory, {.bytes = bytes});
  machine.log().Write("pin", bytes);
  return Finish("cudaHostAlloc");
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) { return cudaHostAlloc(memory, bytes, 0); }

cudaError_t cudaFreeHost(void* memory) {
  if (memory == nullptr) return Finish("cudaFreeHost");
  if (!TheMachine().pinned_memory().Remove(memory)) return Finish("cudaFreeHost", cudaErrorInvalidValue);
  std::free(memory);
  return Finish("cudaFreeHost");
}

cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  TheMachine().pinned_memory().Add(memory, {.bytes = bytes});
  TheMachine().log().Write("pin", bytes);
  return Finish("cudaHostRegister");
}

cudaError_t cudaHostUnregister(void* memory) {
  const bool known = TheMachine().pinned_memory().Remove(memory).has_value();
  return Finish("cudaHostUnregister", known ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  *attributes = {};
  const auto on_device = TheMachine().device_memory().Find(memory);
  attributes->type = on_device                                   ? cudaMemoryTypeDevice
                     : TheMachine().pinned_memory().Find(memory) ? cudaMemoryTypeHost
                                                                 : cudaMemoryTypeUnregistered;
  attributes->device = on_device ? on_device->device : 0;
  return Finish("cudaPointerGetAttributes");
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return Copy("cudaMemcpy", to, from, bytes, nullptr, /*async=*/false);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return Copy("cudaMemcpyAsync", to, from, bytes, stream, /*async=*/true);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return Copy("cudaMemcpyPeerAsync", to, from, bytes, stream, /*async=*/true);
}

// Rows may be separated on the host; the bytes between them must not change.
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t stream) {
  Machine& machine = TheMachine();
  const CopyKind kind = KindOf(to, from);
  machine.log().Write("copy", Record("cudaMemcpy2DAsync", stream, kind.work(width * height)), kind.direction(),
                      width * height, kind.pageable() ? "pageable" : "pinned", "async");
  if (kind.pageable()) {
    if (const cudaError_t error = CheckUnsafe(Unsafe::kWait, stream); error != cudaSuccess) {
      return Finish("cudaMemcpy2DAsync", error);
    }
  }
  for (size_t row = 0; row < height && !kind.to_device; ++row) {
    char* target = static_cast<char*>(to) + row * to_pitch;
    if (kind.from_device) {
      std::memset(target, 1, width);
    } else {
      std::memcpy(target, static_cast<const char*>(from) + row * from_pitch, width);
    }
  }
  return Finish("cudaMemcpy2DAsync");
}

cudaError_t cudaMemsetAsync(void*, int, size_t bytes, cudaStream_t stream) {
  TheMachine().log().Write("memset", Record("cudaMemsetAsync", stream, Work::Copy(static_cast<int64_t>(bytes))), bytes);
  return Finish("cudaMemsetAsync");
}

cudaError_t cudaMemset(void* memory, int value, size_t bytes) { return cudaMemsetAsync(memory, value, bytes, nullptr); }

// LibTorch looks up the driver's functions with this.
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (result != nullptr) {
    *result = *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  }
  return FinishWithoutContext("cudaGetDriverEntryPointByVersion");
}

}  // extern "C"
