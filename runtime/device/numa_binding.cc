#include "runtime/device/numa_binding.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/machine/machine_processors.h"
#include "base/machine/numa_nodes.h"
#include "control/host/gpu_driver.h"
#include "control/host/host_topology.h"

namespace tessera::runtime {
namespace {

constexpr size_t kMostProcessors = 1 << 16;
constexpr size_t kMostNodes = 1 << 10;

class ProcessorMask {
 public:
  ProcessorMask() : set_(CPU_ALLOC(kMostProcessors), [](cpu_set_t* set) { CPU_FREE(set); }) {
    CPU_ZERO_S(kBytes, set_.get());
  }

  bool Apply(pid_t thread) const { return sched_setaffinity(thread, kBytes, set_.get()) == 0; }
  void Add(int32_t processor) { CPU_SET_S(static_cast<size_t>(processor), kBytes, set_.get()); }

 private:
  static constexpr size_t kBytes = CPU_ALLOC_SIZE(kMostProcessors);

  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set_;
};

std::set<pid_t> ThreadsOfThisProcess() {
  std::set<pid_t> threads;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/task", error), end; !error && entry != end;
       entry.increment(error)) {
    pid_t thread = 0;
    if (absl::SimpleAtoi(entry->path().filename().string(), &thread)) threads.insert(thread);
  }
  return threads;
}

// Binds threads until none is new, because a thread that has not been bound yet may start another one meanwhile.
// Returns an empty string or the problem.
std::string BindAllThreads(const ProcessorMask& mask) {
  std::set<pid_t> bound;
  for (bool found = true; found;) {
    found = false;
    for (const pid_t thread : ThreadsOfThisProcess()) {
      if (!bound.insert(thread).second) continue;
      found = true;
      if (!mask.Apply(thread) && errno != ESRCH) return std::strerror(errno);  // the thread may have ended
    }
  }
  return bound.empty() ? "the kernel does not list its threads" : "";
}

// Works without libnuma. Returns false if the kernel or a container forbids it.
bool PreferMemoryOf(int32_t node) {
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kMostNodes / kBits> nodes = {};
  nodes[static_cast<size_t>(node) / kBits] = 1UL << (static_cast<size_t>(node) % kBits);
  return syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes.data(), kMostNodes) == 0;
}

}  // namespace

std::string BindNearGpu(const std::string& pci_address, const std::string& root) {
  const char* const wanted = std::getenv("TESSERA_NUMA");
  if (wanted != nullptr && std::string_view(wanted) == "off") return "threads are not bound: TESSERA_NUMA is off";
  const control::GpuPlace place = control::PlaceGpu(pci_address, root);
  if (!place.numa_node)
    return absl::StrCat("threads are not bound: the NUMA node of GPU ", pci_address, " is not known");
  const std::vector<int32_t> allowed = base::AllowedProcessors();
  std::vector<int32_t> processors;
  for (const base::NumaNode& node : base::ReadNumaNodes(root)) {
    if (node.number != *place.numa_node) continue;
    std::copy_if(node.processors.begin(), node.processors.end(), std::back_inserter(processors),
                 [&](int32_t processor) { return std::ranges::binary_search(allowed, processor); });
  }
  const std::string node = absl::StrCat("NUMA node ", *place.numa_node, " of GPU ", pci_address);
  if (processors.empty()) return absl::StrCat("threads are not bound: none may run on ", node);
  ProcessorMask near;
  for (const int32_t processor : processors) near.Add(processor);
  if (const std::string problem = BindAllThreads(near); !problem.empty()) {
    return absl::StrCat("threads are not bound to ", node, ": ", problem);
  }
  return absl::StrCat("threads are bound to ", node, " (processors ", base::ProcessorListText(processors), ")",
                      PreferMemoryOf(*place.numa_node) ? "" : "; its memory cannot be preferred here");
}

std::string BindNearCudaDevice(int index) {
  const absl::StatusOr<std::vector<control::DriverGpu>> gpus = control::MakeGpuDriver()->Gpus();
  if (!gpus.ok()) return absl::StrCat("threads are not bound: ", std::string(gpus.status().message()));
  if (index < 0 || static_cast<size_t>(index) >= gpus->size()) {
    return absl::StrCat("threads are not bound: NVIDIA's driver knows no cuda:", index);
  }
  return BindNearGpu((*gpus)[static_cast<size_t>(index)].pci_address);
}

}  // namespace tessera::runtime
