// Fakes NVIDIA's management library: which cards have NVLink. LibTorch looks up the other functions together with those
// that it calls when a card is full.
#include <cstring>

#include "tests/support/fake_cuda/machine.h"

using namespace tessera::fake_cuda;  // NOLINT(build/namespaces): what follows are NVML's own functions

extern "C" {

// nvmlReturn_t
static constexpr int kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3, kNotFound = 6;

int nvmlInit_v2() { return kSuccess; }

// A device handle is its number, starting at 1. PCI domains have four digits or, as LibTorch writes them, eight.
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  const size_t length = std::strlen(address);
  for (int i = 0; i < TheMachine().options().devices; ++i) {
    char own[32];
    (void)cudaDeviceGetPCIBusId(own, sizeof(own), i);
    const size_t tail = std::strlen(own);
    if (length < tail || strcasecmp(address + length - tail, own) != 0) continue;
    if (std::strspn(address, "0") < length - tail) continue;
    *device = reinterpret_cast<void*>(static_cast<intptr_t>(1 + i));
    return kSuccess;
  }
  return kNotFound;
}

int nvmlDeviceGetP2PStatus(void* device, void* other, int capability, int* status) {
  constexpr int kNvlink = 2;
  if (device == nullptr || other == nullptr || device == other || capability != kNvlink) return kInvalidArgument;
  *status = TheMachine().options().nvlink ? 0 : 1;
  return kSuccess;
}

int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return kSuccess;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return kNotSupported; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return kNotSupported; }
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = TheMachine().options().driver;
  return kSuccess;
}

}  // extern "C"
