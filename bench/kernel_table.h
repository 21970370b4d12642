// Returns the kernels that a device ran, with counts and times, as LibTorch's profiler (Kineto) reports them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera {

struct KernelTime {
  std::string name;
  int64_t count = 0;
  double milliseconds = 0;  // total of all runs
};

// Runs `work`, which must wait for the device at its end, and returns the kernels, copies and fills that it ran on
// `device`, the longest first. Empty for a device that Kineto does not observe.
std::vector<KernelTime> KernelsOf(at::Device device, const std::function<void()>& work);

}  // namespace tessera
