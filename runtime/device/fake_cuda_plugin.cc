// Answers as the CUDA plug-in would: device 0 can be opened and has memory, any other is refused with a message.
#include <cstddef>
#include <cstdio>

extern "C" int FakeCudaDependency();

extern "C" int TesseraCudaOpen(int device, char* message, size_t message_size) {
#ifdef TESSERA_FAKE_DEPENDENCY
  if (FakeCudaDependency() != 0) return 1;
#endif
  if (device == 0) return 0;
  std::snprintf(message, message_size, "reason %d", device);
  return 1;
}

extern "C" int TesseraCudaMemory(int device, long long* free_bytes, long long* total_bytes) {
  if (device != 0) return 1;
  *free_bytes = 3;
  *total_bytes = 8;
  return 0;
}
