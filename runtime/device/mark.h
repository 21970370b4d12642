// A place in the order of a device's work, which the host can ask about and wait for.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "kernels/device_runtime.h"

namespace tessera::runtime {

// Behind all that the calling thread has issued on the device's current stream so far. The host computes as it issues,
// so its marks are reached at once. Any thread may ask and wait; the one that made it should not, where it has more to
// issue.
class Mark {
 public:
  explicit Mark(c10::Device device);

  bool IsReached() const;

  // Throws c10::Error where the device failed before it.
  void Wait() const;

  // Seconds that the device took from there to here; both are reached.
  double SecondsSince(const Mark& earlier) const;

 private:
  struct Destroy {
    const kernels::DeviceRuntime* runtime;
    void operator()(kernels::DeviceMark* mark) const { runtime->destroy_mark(mark); }
  };

  const kernels::DeviceRuntime& runtime_;
  const std::unique_ptr<kernels::DeviceMark, Destroy> mark_;
};

}  // namespace tessera::runtime
