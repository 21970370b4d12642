// Time as the job store sees it, behind a seam so that tests decide what time it is.
#pragma once

#include "absl/time/time.h"

namespace tessera::base {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  // The calendar's time; it may jump in either direction.
  virtual absl::Time Now() const = 0;

  // Time since some fixed moment; it never jumps.
  virtual absl::Duration Elapsed() const = 0;
};

class SystemClock final : public Clock {
 public:
  absl::Time Now() const override;
  absl::Duration Elapsed() const override;
};

}  // namespace tessera::base
