#include "bench/kernel_table.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <map>
#include <set>

namespace tessera {

std::vector<KernelTime> KernelsOf(at::Device device, const std::function<void()>& work) {
  namespace profiler = torch::autograd::profiler;
  using torch::profiler::impl::ActivityType;
  if (!device.is_cuda()) {
    work();
    return {};
  }
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<ActivityType> activities = {ActivityType::CUDA};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  work();
  const std::unique_ptr<profiler::ProfilerResult> result = profiler::disableProfiler();
  std::map<std::string, KernelTime> kernels;
  for (const profiler::KinetoEvent& event : result->events()) {
    if (event.deviceType() != c10::DeviceType::CUDA) continue;
    KernelTime& kernel = kernels[event.name()];
    kernel.name = event.name();
    ++kernel.count;
    kernel.milliseconds += static_cast<double>(event.durationNs()) / 1e6;
  }
  std::vector<KernelTime> sorted;
  for (auto& [name, kernel] : kernels) sorted.push_back(std::move(kernel));
  std::ranges::sort(sorted, std::ranges::greater(), &KernelTime::milliseconds);
  return sorted;
}

}  // namespace tessera
