// KeyUsage is what an API key has used of a model. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/civil_time.h"

namespace tessera::server {

struct KeyUsage {
  std::string key;  // the key's name; empty: nothing is counted
  std::string model;
  int64_t images = 0;         // finished images
  int64_t steps = 0;          // of finished images, and of those that failed or were cancelled
  double device_seconds = 0;  // time of these steps, encodings and decodings, times the ranks of the layout

  bool operator==(const KeyUsage&) const = default;
};

struct DayUsage {
  absl::CivilDay day;  // in UTC
  KeyUsage usage;
};

struct UsageQuery {
  std::optional<std::string> key;  // absent: all keys
  absl::CivilDay since, until;     // both included
};

// Totals of this many days on which anything was used are kept. A wrong clock at some start therefore removes none.
inline constexpr int64_t kUsageDays = 400;

// A query whose answer has more rows is refused with INVALID_ARGUMENT.
inline constexpr int64_t kMaxUsageRows = 100000;

}  // namespace tessera::server
