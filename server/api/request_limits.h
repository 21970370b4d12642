// Limits that hold for every request on every server and model. For limits of parameters see
// control/parameters/job_parameters.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::server {

inline constexpr int64_t kMaxImageCount = 1000;
inline constexpr int32_t kMinPriority = -10;
inline constexpr int32_t kMaxPriority = 10;
inline constexpr int32_t kMaxPartialImages = 3;
inline constexpr size_t kMaxUserBytes = 256;
inline constexpr size_t kMaxIdempotencyKeyBytes = 255;
inline constexpr size_t kMaxModelNameBytes = 256;
inline constexpr int64_t kMaxDeadlineMs = int64_t{7} * 24 * 3600 * 1000;
inline constexpr size_t kMaxPictureBytes = 50'000'000;  // of a picture's file
inline constexpr size_t kMaxPictureUrlBytes = kMaxPictureBytes / 3 * 4 + 64;

// A server's limits, which apply in addition to those of its models.
struct RequestLimits {
  int64_t max_images = 10;       // per request
  int64_t max_pixels = 1 << 24;  // per image
  int64_t max_steps = 1000;

  bool operator==(const RequestLimits&) const = default;
};

}  // namespace tessera::server
