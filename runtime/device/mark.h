// Mark is a point in the order of a device's work, which the host can query and wait for.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "kernels/device_runtime.h"

namespace tessera::runtime {

// A mark comes after all work that the calling thread has issued so far on the device's current stream. The host
// computes while it issues, so its marks are reached immediately. Any thread may query and wait; the thread that
// created the mark should not wait if it has more work to issue.
class Mark {
 public:
  explicit Mark(c10::Device device);

  bool IsReached() const;

  // Throws c10::Error if the device failed before the mark.
  void Wait() const;

  // Returns the seconds that the device took from `earlier` to this mark; both must have been reached.
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
