// Clock is the job store's source of time, an interface so that tests can set the time.
#pragma once

#include "absl/time/time.h"

namespace tessera::base {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  // Calendar time; it may jump in either direction.
  virtual absl::Time Now() const = 0;

  // Time since a fixed moment; it never jumps.
  virtual absl::Duration Elapsed() const = 0;
};

class SystemClock final : public Clock {
 public:
  absl::Time Now() const override;
  absl::Duration Elapsed() const override;
};

}  // namespace tessera::base
