// What no request exceeds, whatever the server and the model. Limits of parameters: control/job_parameters.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace tessera::server {

// Valid values, both ends included: of a number, of each number of a list, of the bytes of a text.
struct Bounds {
  double low, high;
};
inline constexpr Bounds kUnbounded = {0, std::numeric_limits<double>::infinity()};

inline constexpr int64_t kMaxImageCount = 1000;
inline constexpr int32_t kMinPriority = -10;
inline constexpr int32_t kMaxPriority = 10;
inline constexpr int32_t kMaxPartialImages = 3;
inline constexpr size_t kMaxUserBytes = 256;
inline constexpr size_t kMaxIdempotencyKeyBytes = 255;
inline constexpr size_t kMaxModelNameBytes = 256;
inline constexpr int64_t kMaxDeadlineMs = int64_t{7} * 24 * 3600 * 1000;

}  // namespace tessera::server
