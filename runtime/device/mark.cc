#include "runtime/device/mark.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace tessera::runtime {

Mark::Mark(at::Device device) {
  if (device.is_cpu()) {
    time_ = std::chrono::steady_clock::now();
    return;
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  event_.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // with times
  event_->record(guard.getStream(device));
}

bool Mark::IsReached() const { return !event_ || event_->query(); }

void Mark::Wait() const {
  if (event_) event_->synchronize();
}

double Mark::SecondsSince(const Mark& earlier) const {
  if (!event_) return std::chrono::duration<double>(time_ - earlier.time_).count();
  return earlier.event_->elapsedTime(*event_) / 1000;
}

}  // namespace tessera::runtime
