// Implements a fake CUDA plug-in: device 0 can be opened and has memory, any other is refused with a message.
#include <cstdlib>
#include <string>

#include "control/host/device_memory.h"
#include "kernels/cuda/plugin.h"

extern "C" int FakeCudaDependency();

namespace tessera::runtime {
namespace {

constexpr kernels::DeviceRuntime kRuntime = {
    .find =
        [](const std::string& name, std::string& problem) noexcept {
          constexpr char kName[] = "GPU-00000000-0000-0000-0000-000000000000";
          const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
          if (name == kName || (visible != nullptr && name == visible)) return 0;
          problem = std::string("valid is ") + kName;
          return -1;
        },
    .open = [](int device) noexcept { return device == 0 ? std::string() : "reason " + std::to_string(device); },
    .identify =
        [](int device, kernels::DeviceIdentity& identity) noexcept {
          identity = {.device = "Fake", .driver = "1", .cudnn = "2", .nccl = "3"};
          return device == 0 ? std::string() : "reason " + std::to_string(device);
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
