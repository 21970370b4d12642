#include "kernels/device_runtimes.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <chrono>

namespace tessera::kernels {
namespace {

// The host computes when an operator is called, so its marks are reached at once.
struct HostMark : DeviceMark {
  std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now();
};

std::chrono::steady_clock::time_point TimeOf(const DeviceMark& mark) { return static_cast<const HostMark&>(mark).time; }

constexpr DeviceRuntime kHostRuntime = {
    .find =
        [](const std::string&, std::string& problem) noexcept {
          problem = "the CPU has no such name";
          return -1;
        },
    .open = [](int) noexcept { return std::string(); },
    .identify = [](int, DeviceIdentity&) noexcept { return std::string(); },
    .read_memory = [](int, DeviceMemory&) noexcept { return false; },
    .release_cache = [](int) {},
    .limit_memory = [](int, int64_t) {},
    .works = [](int) noexcept { return true; },
    .record_mark = [](int) -> DeviceMark* { return new HostMark; },
    .is_reached = [](const DeviceMark&) { return true; },
    .wait = [](const DeviceMark&) {},
    .seconds_between =
        [](const DeviceMark& from, const DeviceMark& to) {
          return std::chrono::duration<double>(TimeOf(to) - TimeOf(from)).count();
        },
    .destroy_mark = [](DeviceMark* mark) noexcept { delete static_cast<HostMark*>(mark); },
    .pinned_memory = []() -> c10::Allocator* { return c10::GetCPUAllocator(); },
    .begin_capture = [](int) { return false; },
    .end_capture = [](int) noexcept -> DeviceGraph* { return nullptr; },
    .graph_bytes = [](const DeviceGraph&) noexcept { return int64_t{0}; },
    .launch = [](DeviceGraph&) { TORCH_CHECK(false, "the CPU has no graphs"); },
    .destroy_graph = [](DeviceGraph*) noexcept {},
    .is_capturing = [](int) noexcept { return false; },
    .card = [](int) noexcept { return std::string(); },
    .current_stream = [](int) -> void* { return nullptr; },
    .side_stream = [](int) -> void* { return nullptr; },
    .wait_for_stream = [](int, void*, void*) {},
    .nccl = [](std::string& problem) noexcept -> const NcclApi* {
      problem = "the device is the CPU";
      return nullptr;
    },
};

using Runtimes = std::array<std::atomic<const DeviceRuntime*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES>;

std::atomic<const DeviceRuntime*>& RuntimeOf(c10::DeviceType type) {
  static Runtimes runtimes;
  return runtimes[static_cast<size_t>(type)];
}

}  // namespace

void SetDeviceRuntime(c10::DeviceType type, const DeviceRuntime& runtime) { RuntimeOf(type) = &runtime; }

const DeviceRuntime& DeviceRuntimeOf(c10::DeviceType type) {
  if (type == c10::DeviceType::CPU) return kHostRuntime;
  const DeviceRuntime* runtime = RuntimeOf(type);
  TORCH_CHECK(runtime != nullptr, "no device of type ", type, " was opened");
  return *runtime;
}

}  // namespace tessera::kernels
