// Replaces libcuda.so.1 and libnvidia-ml.so.1 in tests: a driver of two GPUs, whose answers an environment variable
// defines.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

bool Asked(const char* what) {
  const char* fault = std::getenv("MADE_UP_DRIVER_FAULT");
  return fault != nullptr && std::string_view(fault) == what;
}

int devices[2];

}  // namespace

extern "C" {

int cuInit(unsigned) { return Asked("no GPU") ? 100 : Asked("no start") ? 999 : 0; }

int cuDeviceGetCount(int* count) {
  *count = Asked("many") ? 1 << 20 : 2;
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = 70 + ordinal;
  return 0;
}

int cuDeviceGetPCIBusId(char* text, int size, int device) {
  if (Asked("no address")) return 1;
  std::snprintf(text, static_cast<size_t>(size), "%s",
                Asked("garbage") ? "a bus"
                : device == 70   ? "0000:3D:00.0"
                                 : "0000:C1:00.0");
  return 0;
}

int cuDeviceGetUuid_v2(unsigned char* bytes, int device) {
  std::memset(bytes, device, 16);
  return 0;
}

int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  if (Asked("no memory")) return 1;
  *bytes = (device == 70 ? size_t{24} : size_t{80}) << 30;
  return 0;
}

int nvmlInit_v2() { return Asked("no NVML") ? 9 : 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  if (Asked("unknown")) return 6;
  *device = &devices[std::strcmp(address, "0000:3d:00.0") == 0 ? 0 : 1];
  return 0;
}

int nvmlDeviceGetP2PStatus(void* device, void* other, int capability, int* status) {
  if (Asked("not supported")) return 3;
  *status = device != other && capability == 2 && !Asked("no NVLink") ? 0 : 1;
  return 0;
}

}  // extern "C"
