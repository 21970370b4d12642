#include "runtime/device.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/plugin.h"

namespace tessera {
namespace {

// The plug-in lies beside the worker, or in ../lib of an installed tree.
std::string PluginPath() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const std::filesystem::path& candidate : {folder / kCudaPluginName, folder / "../lib" / kCudaPluginName}) {
    if (std::filesystem::exists(candidate, error)) return candidate.string();
  }
  return kCudaPluginName;
}

absl::Status OpenCudaPlugin(int device) {
  // Never closed: its operators stay registered.
  void* library = dlopen(PluginPath().c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device is cuda and the CUDA plug-in (", kCudaPluginName, ") could not be loaded: ",
        "it is not installed beside the worker, or the CUDA libraries of LibTorch are not; use --device cpu"));
  }
  const auto open = reinterpret_cast<CudaPluginOpen>(dlsym(library, kCudaPluginOpenName));
  if (open == nullptr) return absl::FailedPreconditionError("device is cuda and the CUDA plug-in is of another version");
  char message[256] = "";
  if (open(device, message, sizeof(message)) != 0) return absl::FailedPreconditionError(message);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<at::ScalarType> ParseDtype(const std::string& name) {
  if (name == "fp32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp64") return at::kDouble;
  return absl::InvalidArgumentError(absl::StrCat("dtype is \"", name, "\"; legal are fp32, bf16 and fp64"));
}

absl::StatusOr<at::Device> OpenDevice(const std::string& name) {
  if (name == "cpu") return at::Device(at::kCPU);
  int index = 0;
  const bool numbered = absl::StartsWith(name, "cuda:") && absl::SimpleAtoi(name.substr(5), &index);
  if (!(name == "cuda" || numbered) || index < 0 || index > 127) {
    return absl::InvalidArgumentError(absl::StrCat("device is \"", name, "\"; legal are cpu, cuda and cuda:N"));
  }
  if (absl::Status opened = OpenCudaPlugin(index); !opened.ok()) return opened;
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index));
}

}  // namespace tessera
