#include "control/host/gpu_driver.h"

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/machine/pci_place.h"
#include "base/macros/status_macros.h"

namespace tessera::control {
namespace {

// Constants of cuda.h and nvml.h.
constexpr int kSuccess = 0;
constexpr int kCudaNoDevice = 100;
constexpr int kNvlinkCapability = 2;  // NVML_P2P_CAPS_INDEX_NVLINK
constexpr int kP2pOk = 0;             // NVML_P2P_STATUS_OK
constexpr int kMostGpus = 128;
constexpr size_t kAddressBytes = 32;

absl::Status Missing(absl::string_view what) { return absl::UnavailableError(what); }

// A shared library that is never unloaded, because the driver keeps its own threads.
class Library {
 public:
  explicit Library(const std::string& file) : file_(file), handle_(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {}

  template <typename Function>
  absl::Status Find(const char* name, Function*& function) const {
    if (handle_ == nullptr) return Missing(absl::StrCat(file_, " of NVIDIA's driver is not installed here"));
    function = reinterpret_cast<Function*>(dlsym(handle_, name));
    if (function == nullptr) return Missing(absl::StrCat(file_, " of NVIDIA's driver has no ", name));
    return absl::OkStatus();
  }

 private:
  const std::string file_;
  void* const handle_;
};

std::string UuidText(const std::array<unsigned char, 16>& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += {kDigits[bytes[i] / 16], kDigits[bytes[i] % 16]};
  }
  return text;
}

struct Nvml {
  int (*init)() = nullptr;
  int (*find)(const char* pci_address, void** device) = nullptr;
  int (*p2p)(void* device, void* other, int capability, int* status) = nullptr;
};

class LoadedGpuDriver final : public GpuDriver {
 public:
  explicit LoadedGpuDriver(const GpuDriverFiles& files) : files_(files) {}

  absl::StatusOr<std::vector<DriverGpu>> Gpus() override {
    const Library cuda(files_.cuda);
    int (*init)(unsigned) = nullptr;
    int (*count_of)(int*) = nullptr;
    int (*get)(int*, int) = nullptr;
    int (*address_of)(char*, int, int) = nullptr;
    int (*uuid_of)(unsigned char*, int) = nullptr;
    RETURN_IF_ERROR(cuda.Find("cuInit", init));
    RETURN_IF_ERROR(cuda.Find("cuDeviceGetCount", count_of));
    RETURN_IF_ERROR(cuda.Find("cuDeviceGet", get));
    RETURN_IF_ERROR(cuda.Find("cuDeviceGetPCIBusId", address_of));
    RETURN_IF_ERROR(cuda.Find("cuDeviceGetUuid_v2", uuid_of));
    int (*memory_of)(size_t*, int) = nullptr;
    cuda.Find("cuDeviceTotalMem_v2", memory_of).IgnoreError();
    const int started = init(0);
    if (started == kCudaNoDevice) return std::vector<DriverGpu>();
    int count = 0;
    if (started != kSuccess || count_of(&count) != kSuccess) {
      return Missing(absl::StrCat("NVIDIA's driver does not start: its error is ", started));
    }
    if (count < 0 || count > kMostGpus) return Missing(absl::StrCat("NVIDIA's driver reports ", count, " GPUs"));
    std::vector<DriverGpu> gpus;
    for (int i = 0; i < count; ++i) {
      int device = 0;
      std::array<char, kAddressBytes> text = {};
      std::array<unsigned char, 16> uuid = {};
      if (get(&device, i) != kSuccess ||
          address_of(text.data(), static_cast<int>(text.size()) - 1, device) != kSuccess ||
          uuid_of(uuid.data(), device) != kSuccess) {
        return Missing(absl::StrCat("NVIDIA's driver does not report where cuda:", i, " is"));
      }
      const std::optional<std::string> address = base::PciAddress(text.data());
      if (!address) return Missing(absl::StrCat("NVIDIA's driver reports no PCI address for cuda:", i));
      size_t memory = 0;
      if (memory_of == nullptr || memory_of(&memory, device) != kSuccess) memory = 0;
      gpus.push_back({.pci_address = *address, .uuid = UuidText(uuid), .memory_bytes = memory});
    }
    return gpus;
  }

  absl::StatusOr<bool> HaveNvlink(const std::string& pci_address, const std::string& other) override {
    if (nvml_.p2p == nullptr) RETURN_IF_ERROR(LoadNvml());
    void *device = nullptr, *peer = nullptr;
    for (const auto& [address, found] : {std::pair(&pci_address, &device), std::pair(&other, &peer)}) {
      const int result = nvml_.find(address->c_str(), found);
      if (result != kSuccess) return Missing(absl::StrCat("NVML does not find ", *address, ": its error is ", result));
    }
    int status = -1;
    const int result = nvml_.p2p(device, peer, kNvlinkCapability, &status);
    if (result != kSuccess) {
      return Missing(
          absl::StrCat("NVML does not report how ", pci_address, " and ", other, " are linked: its error is ", result));
    }
    return status == kP2pOk;
  }

 private:
  absl::Status LoadNvml() {
    const Library library(files_.nvml);
    Nvml nvml;
    RETURN_IF_ERROR(library.Find("nvmlInit_v2", nvml.init));
    RETURN_IF_ERROR(library.Find("nvmlDeviceGetHandleByPciBusId_v2", nvml.find));
    RETURN_IF_ERROR(library.Find("nvmlDeviceGetP2PStatus", nvml.p2p));
    if (const int result = nvml.init(); result != kSuccess) {
      return Missing(absl::StrCat("NVML does not start: its error is ", result));
    }
    nvml_ = nvml;
    return absl::OkStatus();
  }

  const GpuDriverFiles files_;
  Nvml nvml_;
};

}  // namespace

std::unique_ptr<GpuDriver> MakeGpuDriver(const GpuDriverFiles& files) {
  return std::make_unique<LoadedGpuDriver>(files);
}

}  // namespace tessera::control
