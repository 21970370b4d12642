// RefusalLog logs that a listener lacks descriptors for connections, at a limited rate. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "base/log/log_line.h"

namespace tessera::server {

class RefusalLog {
 public:
  // `listener` is its name, such as "http".
  RefusalLog(std::string listener, base::EventLog log) : listener_(std::move(listener)), log_(std::move(log)) {}

  // A connection was closed, or waits, for lack of a descriptor. `now` never jumps; `most` is the limit of open
  // descriptors.
  void Refused(absl::Duration now, int64_t most);

 private:
  const std::string listener_;
  const base::EventLog log_;
  std::mutex mutex_;
  // Guarded by mutex_.
  int64_t refused_ = 0;  // since the last line
  absl::Duration said_ = -absl::InfiniteDuration();
};

}  // namespace tessera::server
