// WatchedTime counts the time during which a watch really looked. A thread, a process or a machine can stand still, and
// what happened meanwhile is seen only afterwards, so the watch must not blame others for that time.
#pragma once

#include <algorithm>
#include <optional>

#include "absl/time/time.h"

namespace tessera::base {

class WatchedTime final {
 public:
  // Between two looks no more than `longest_gap` is counted.
  explicit WatchedTime(absl::Duration longest_gap) : longest_gap_(longest_gap) {}

  // Counts the time since the last look and returns the sum, which never decreases. `now` is of a clock that never
  // jumps; the first look counts nothing.
  absl::Duration LookAt(absl::Duration now) {
    if (last_.has_value()) sum_ += std::clamp(now - *last_, absl::ZeroDuration(), longest_gap_);
    last_ = now;
    return sum_;
  }

 private:
  const absl::Duration longest_gap_;
  std::optional<absl::Duration> last_;
  absl::Duration sum_;
};

}  // namespace tessera::base
