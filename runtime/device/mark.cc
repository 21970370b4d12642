#include "runtime/device/mark.h"

#include "kernels/device_runtimes.h"

namespace tessera::runtime {

Mark::Mark(c10::Device device)
    : runtime_(kernels::DeviceRuntimeOf(device.type())),
      mark_(runtime_.record_mark(device.index()), Destroy{&runtime_}) {}

bool Mark::IsReached() const { return runtime_.is_reached(*mark_); }

void Mark::Wait() const { runtime_.wait(*mark_); }

double Mark::SecondsSince(const Mark& earlier) const { return runtime_.seconds_between(*earlier.mark_, *mark_); }

}  // namespace tessera::runtime
