#include "runtime/device/device.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/machine/machine_processors.h"
#include "base/macros/status_macros.h"
#include "control/host/device.h"
#include "control/host/device_memory.h"
#include "control/parameters/load_parameters.h"
#include "kernels/cuda/plugin.h"
#include "kernels/device_runtimes.h"

namespace tessera::runtime {
namespace {

// Rewrites the dynamic loader's error about a plug-in, "FILE: PROBLEM", for a user, without folders.
std::string LoadProblem(absl::string_view error, const std::filesystem::path& plugin) {
  const size_t colon = error.find(": ");
  if (colon == absl::string_view::npos) return "the CUDA plug-in cannot be loaded";
  const std::string file = std::filesystem::path(std::string(error.substr(0, colon))).filename();
  const absl::string_view problem = error.substr(colon + 2);
  if (absl::StartsWith(problem, "cannot open shared object file") && file != plugin.filename()) {
    return absl::StrCat("the CUDA plug-in needs ", file,
                        ", which is not installed; it comes with LibTorch's CUDA libraries, as a Python environment "
                        "with torch has them: point TESSERA_LIBTORCH at that");
  }
  if (absl::StrContains(problem, "undefined symbol") || absl::StrContains(problem, "version `")) {
    return absl::StrCat("the CUDA plug-in and the installed LibTorch or CUDA libraries are of different versions: ",
                        file, " lacks symbols of another library");
  }
  return absl::StrCat("the CUDA plug-in cannot be loaded: ", file, " is damaged or not readable");
}

// Restricts CUDA to one part of a GPU: it shows a process only the part that this variable names at the first call.
void ShowPartOfGpu(const std::string& name) {
  if (std::getenv("CUDA_VISIBLE_DEVICES") == nullptr) setenv("CUDA_VISIBLE_DEVICES", name.c_str(), /*overwrite=*/0);
}

absl::Status Missing(const control::Device& device, absl::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat("device is ", control::DeviceText(device), "; ", what));
}

// A CUDA device, and the table of the plug-in that provides it.
struct CudaDevice {
  const kernels::DeviceRuntime* runtime = nullptr;
  int index = 0;
};

absl::StatusOr<CudaDevice> FindCudaDevice(const control::Device& device, const std::string& plugin) {
  std::error_code error;
  if (!std::filesystem::exists(plugin, error)) {
    return Missing(device, absl::StrCat("the CUDA plug-in (", kernels::kCudaPluginName,
                                        ") is not in the worker's folder: this build of Tessera is for the CPU "
                                        "only"));
  }
  if (absl::StartsWith(device.name, "MIG-")) ShowPartOfGpu(device.name);
  // Never closed, because LibTorch's CUDA kernels stay registered.
  void* library = dlopen(plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Missing(device, LoadProblem(dlerror(), plugin));
  const auto table = reinterpret_cast<kernels::CudaPluginRuntime>(dlsym(library, kernels::kCudaPluginRuntimeName));
  if (table == nullptr) return Missing(device, "the CUDA plug-in is of another version than the worker");
  int version = 0;
  const kernels::DeviceRuntime* runtime = table(kernels::kDeviceRuntimeVersion, &version);
  if (runtime == nullptr) {
    return Missing(
        device,
        absl::StrCat("the CUDA plug-in is of another version than the worker: its functions are of version ", version,
                     ", the worker's of version ", kernels::kDeviceRuntimeVersion, "; install both from one build"));
  }
  std::string problem;
  const int index = device.name.empty() ? std::max(0, device.index) : runtime->find(device.name, problem);
  if (index < 0) return Missing(device, problem);
  return CudaDevice{.runtime = runtime, .index = index};
}

absl::StatusOr<control::Device> ParseOpenable(const std::string& name) {
  const std::optional<control::Device> device = control::ParseDevice(name);
  if (device.has_value() && device->index <= 127) return *device;
  return absl::InvalidArgumentError(absl::StrCat("device is \"", name, "\"; valid values are ", control::kDeviceNames));
}

}  // namespace

at::ScalarType ScalarTypeOf(control::Dtype dtype) {
  return dtype == control::Dtype::kFp64 ? at::kDouble : dtype == control::Dtype::kFp32 ? at::kFloat : at::kBFloat16;
}

std::string CudaPluginPath() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).replace_filename(kernels::kCudaPluginName);
}

absl::StatusOr<at::Device> OpenDevice(const std::string& name, const std::string& plugin) {
  ASSIGN_OR_RETURN(const control::Device device, ParseOpenable(name));
  if (device.kind == control::DeviceKind::kCpu) return at::Device(at::kCPU);
  ASSIGN_OR_RETURN(const CudaDevice cuda, FindCudaDevice(device, plugin));
  if (const std::string problem = cuda.runtime->open(cuda.index); !problem.empty()) return Missing(device, problem);
  kernels::SetDeviceRuntime(at::kCUDA, *cuda.runtime);
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(cuda.index));
}

absl::StatusOr<kernels::DeviceIdentity> IdentifyDevice(const std::string& name, const std::string& plugin) {
  ASSIGN_OR_RETURN(const control::Device device, ParseOpenable(name));
  kernels::DeviceIdentity identity;
  if (device.kind == control::DeviceKind::kCpu) return identity;
  ASSIGN_OR_RETURN(const CudaDevice cuda, FindCudaDevice(device, plugin));
  const std::string problem = cuda.runtime->identify(cuda.index, identity);
  if (!problem.empty()) return Missing(device, problem);
  return identity;
}

std::optional<kernels::DeviceMemory> ReadDeviceMemory(at::Device device) {
  kernels::DeviceMemory memory;
  if (!kernels::DeviceRuntimeOf(device.type()).read_memory(device.index(), memory)) return std::nullopt;
  return memory;
}

bool DeviceWorks(at::Device device) { return kernels::DeviceRuntimeOf(device.type()).works(device.index()); }

void ReleaseDeviceMemory(at::Device device) { kernels::DeviceRuntimeOf(device.type()).release_cache(device.index()); }

void LimitDeviceMemory(at::Device device, int64_t bytes) {
  kernels::DeviceRuntimeOf(device.type()).limit_memory(device.index(), bytes);
}

// LibTorch's own default is the machine's cores, or what OMP_NUM_THREADS says; it knows nothing of control groups.
void UseThreads(int threads) {
  at::set_num_threads(threads > 0 ? threads
                                  : std::min<int>(at::get_num_threads(), base::ReadMachineProcessors().available()));
}

}  // namespace tessera::runtime
