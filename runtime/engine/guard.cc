#include "runtime/engine/guard.h"

#include <cstdio>

#include "absl/strings/match.h"
#include "runtime/device/device.h"

namespace tessera::runtime {

absl::Status OutOfDeviceMemory() {
  return absl::ResourceExhaustedError(
      "out of memory on the device; use a smaller size, a smaller dtype or fewer images");
}

void Guard::Poison(const std::string& reason) const {
  if (place_.ranks() > 1) place_.segment->Poison(place_.rank, reason);
}

absl::Status Guard::StatusOf(const c10::Error& error) const {
  std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return OutOfDeviceMemory();
  if (absl::StrContains(error.what_without_backtrace(), "can't allocate memory")) {
    return absl::ResourceExhaustedError("out of memory; use a smaller size, a smaller dtype or fewer images");
  }
  if (!DeviceWorks(device_)) {
    return absl::UnavailableError("the device failed; restart this worker, whose log has the device's error");
  }
  return absl::InternalError("the tensor library reported an error; the worker's log has it");
}

}  // namespace tessera::runtime
