// Limits that hold for every request on every server and model. For limits of parameters see control/job_parameters.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/fields.h"

namespace tessera::server {

// Bounds are inclusive and apply to a number, to each number of a list, or to the number of bytes of a text.
struct Bounds {
  double low, high;
};
inline constexpr Bounds kUnbounded = {0, std::numeric_limits<double>::infinity()};

inline Bounds BoundsOf(const base::Integer& valid) {
  if (valid.high == std::numeric_limits<uint64_t>::max()) return kUnbounded;
  return {static_cast<double>(valid.low), static_cast<double>(valid.high)};
}
inline Bounds BoundsOf(const base::Number& valid) { return {valid.low, valid.high}; }
inline Bounds BoundsOf(const base::Text& valid) { return {0, static_cast<double>(valid.most_bytes)}; }
inline Bounds BoundsOf(base::Flag) { return kUnbounded; }
inline Bounds BoundsOf(base::Choice) { return kUnbounded; }
template <class Each>
Bounds BoundsOf(const base::List<Each>& valid) {  // of each value; for a list of structs, of their number
  if constexpr (std::is_same_v<Each, base::Nested>) {
    return {0, static_cast<double>(valid.most)};
  } else {
    return BoundsOf(valid.each);
  }
}

inline constexpr int64_t kMaxImageCount = 1000;
inline constexpr int32_t kMinPriority = -10;
inline constexpr int32_t kMaxPriority = 10;
inline constexpr int32_t kMaxPartialImages = 3;
inline constexpr size_t kMaxUserBytes = 256;
inline constexpr size_t kMaxIdempotencyKeyBytes = 255;
inline constexpr size_t kMaxModelNameBytes = 256;
inline constexpr int64_t kMaxDeadlineMs = int64_t{7} * 24 * 3600 * 1000;

}  // namespace tessera::server
