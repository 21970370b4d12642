// Fakes the driver functions that LibTorch calls: contexts, and the virtual memory of its expandable segments.
#include <cuda.h>

#include <mutex>
#include <unordered_map>

#include "tests/support/fake_cuda/capture.h"
#include "tests/support/fake_cuda/machine.h"

namespace tessera::fake_cuda {
namespace {

struct Physical {
  size_t bytes = 0;
  int device = 0;
};

CUresult Checked(const char* function, CUresult result = CUDA_SUCCESS) {
  if (result == CUDA_SUCCESS && TheMachine().failed()) result = CUDA_ERROR_ILLEGAL_ADDRESS;
  if (result != CUDA_SUCCESS) TheMachine().log().Write("error", function, static_cast<int>(result));
  return result;
}

}  // namespace
}  // namespace tessera::fake_cuda

using namespace tessera::fake_cuda;  // NOLINT(build/namespaces): what follows are CUDA's own functions

extern "C" {

CUresult cuInit(unsigned) { return Checked("cuInit"); }

CUresult cuDriverGetVersion(int* version) {
  *version = TheMachine().options().driver;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return Checked("cuDeviceGet");
}

CUresult cuDeviceGetCount(int* count) {
  *count = TheMachine().options().devices;
  return Checked("cuDeviceGetCount");
}

CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  return Checked("cuDeviceGetPCIBusId",
                 cudaDeviceGetPCIBusId(id, length, device) == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  cudaDeviceProp card;
  const bool known = cudaGetDeviceProperties(&card, device) == cudaSuccess;
  if (known) *uuid = card.uuid;
  return Checked("cuDeviceGetUuid_v2", known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  // LibTorch asks which handle types can share memory between processes. A plain card supports none.
  *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ? 1 : 0;
  return Checked("cuDeviceGetAttribute");
}

CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return Checked("cuDevicePrimaryCtxGetState");
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(static_cast<intptr_t>(1 + device));
  return Checked("cuDevicePrimaryCtxRetain");
}

CUresult cuCtxGetCurrent(CUcontext* context) { return cuDevicePrimaryCtxRetain(context, CurrentDevice()); }

CUresult cuCtxSetCurrent(CUcontext) { return Checked("cuCtxSetCurrent"); }

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an error of the fake CUDA driver";
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = 2 << 20;
  return Checked("cuMemGetAllocationGranularity");
}

CUresult cuMemAddressReserve(CUdeviceptr* begin, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  void* reserved = TheMachine().Reserve(bytes, CurrentDevice());
  *begin = reinterpret_cast<CUdeviceptr>(reserved);
  return Checked("cuMemAddressReserve", reserved == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
}

CUresult cuMemAddressFree(CUdeviceptr begin, size_t) {
  TheMachine().Unreserve(reinterpret_cast<void*>(begin));
  return Checked("cuMemAddressFree");
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                     unsigned long long) {
  // Unlike cudaMalloc it does not synchronize and captures do not forbid it: LibTorch maps the memory that a graph
  // allocates.
  const int device = properties->location.id;
  if (!TheMachine().Take(bytes, device)) return Checked("cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY);
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(new Physical{.bytes = bytes, .device = device});
  return Checked("cuMemCreate");
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const auto* physical = reinterpret_cast<Physical*>(handle);
  TheMachine().GiveBack(physical->bytes, physical->device);
  delete physical;
  return Checked("cuMemRelease");
}

CUresult cuMemMap(CUdeviceptr begin, size_t bytes, size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  TheMachine().mappings().Add(reinterpret_cast<void*>(begin),
                              {.bytes = bytes, .device = reinterpret_cast<Physical*>(handle)->device});
  return Checked("cuMemMap");
}

CUresult cuMemUnmap(CUdeviceptr begin, size_t) {
  const bool known = TheMachine().mappings().Remove(reinterpret_cast<void*>(begin)).has_value();
  return Checked("cuMemUnmap", known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return Checked("cuMemSetAccess"); }

}  // extern "C"

// LibTorch looks these up together with the functions above, for memory shared between processes and for partitions of
// a card. None is called here. They are declared again without parameters because only their names are looked up.
#define FAKE_CUDA_UNSUPPORTED(name)                            \
  extern "C" CUresult FakeUnsupported_##name() __asm__(#name); \
  extern "C" CUresult FakeUnsupported_##name() { return Checked(#name, CUDA_ERROR_NOT_SUPPORTED); }

FAKE_CUDA_UNSUPPORTED(cuCtxFromGreenCtx)
FAKE_CUDA_UNSUPPORTED(cuCtxPopCurrent)
FAKE_CUDA_UNSUPPORTED(cuCtxPushCurrent)
FAKE_CUDA_UNSUPPORTED(cuDevResourceGenerateDesc)
FAKE_CUDA_UNSUPPORTED(cuDevSmResourceSplitByCount)
FAKE_CUDA_UNSUPPORTED(cuDeviceGetDevResource)
FAKE_CUDA_UNSUPPORTED(cuGreenCtxCreate)
FAKE_CUDA_UNSUPPORTED(cuGreenCtxDestroy)
FAKE_CUDA_UNSUPPORTED(cuGreenCtxStreamCreate)
FAKE_CUDA_UNSUPPORTED(cuMemExportToShareableHandle)
FAKE_CUDA_UNSUPPORTED(cuMemGetAllocationPropertiesFromHandle)
FAKE_CUDA_UNSUPPORTED(cuMemImportFromShareableHandle)
FAKE_CUDA_UNSUPPORTED(cuMemRetainAllocationHandle)
FAKE_CUDA_UNSUPPORTED(cuMemsetD32Async)
FAKE_CUDA_UNSUPPORTED(cuMulticastAddDevice)
FAKE_CUDA_UNSUPPORTED(cuMulticastBindMem)
FAKE_CUDA_UNSUPPORTED(cuMulticastCreate)
FAKE_CUDA_UNSUPPORTED(cuMulticastUnbind)
FAKE_CUDA_UNSUPPORTED(cuStreamWriteValue32)
