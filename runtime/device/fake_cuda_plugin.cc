// Answers as the CUDA plug-in would: device 0 can be opened and has memory, any other is refused with a message.
#include <string>

#include "kernels/cuda/plugin.h"

extern "C" int FakeCudaDependency();

namespace tessera::runtime {
namespace {

constexpr kernels::DeviceRuntime kRuntime = {
    .find =
        [](const std::string& name, std::string& problem) noexcept {
          if (name == "GPU-0") return 0;
          problem = "valid is GPU-0";
          return -1;
        },
    .open = [](int device) noexcept { return device == 0 ? std::string() : "reason " + std::to_string(device); },
    .identify =
        [](int) noexcept {
          return kernels::DeviceIdentity{.device = "Fake", .driver = "1", .cudnn = "2", .nccl = "3"};
        },
    .read_memory =
        [](int device, kernels::DeviceMemory& memory) noexcept {
          if (device == 0) memory = {.total = 8, .free = 3, .used = 2, .cached = 1};
          return device == 0;
        },
};

#ifdef TESSERA_FAKE_VERSION
constexpr int kVersion = TESSERA_FAKE_VERSION;
#else
constexpr int kVersion = kernels::kDeviceRuntimeVersion;
#endif

}  // namespace

extern "C" const kernels::DeviceRuntime* TesseraCudaRuntime(int version, int* own_version) {
#ifdef TESSERA_FAKE_DEPENDENCY
  if (FakeCudaDependency() != 0) return nullptr;
#endif
  *own_version = kVersion;
  return version == kVersion ? &kRuntime : nullptr;
}

}  // namespace tessera::runtime
