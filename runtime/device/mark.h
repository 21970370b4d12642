// A place in the order of a device's work, which the host can ask about and wait for.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <chrono>
#include <optional>

namespace tessera::runtime {

// Behind all that the calling thread has issued on the device's current stream so far. The host computes as it issues,
// so its marks are reached at once. Any thread may ask and wait; the one that made it should not, where it has more to
// issue.
class Mark {
 public:
  explicit Mark(at::Device device);

  bool IsReached() const;

  // Throws c10::Error where the device failed before it.
  void Wait() const;

  // Seconds that the device took from there to here; both are reached.
  double SecondsSince(const Mark& earlier) const;

 private:
  std::chrono::steady_clock::time_point time_;  // on the host
  std::optional<c10::Event> event_;             // on a device
};

}  // namespace tessera::runtime
