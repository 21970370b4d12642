// Aspect-ratio buckets: the few sizes to which the pictures of a run are scaled, so that all pictures of a batch have
// one size. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tessera::control {

struct Bucket {
  int width = 0;  // pixels
  int height = 0;

  auto operator<=>(const Bucket&) const = default;
};

// "768x1344"
std::string BucketText(const Bucket& bucket);

// The sizes that a model accepts, according to its description.
struct BucketRule {
  int multiple = 16;  // of both sides
  int min_side = 16;
  int max_side = 16384;   // equal to min_side for a model of one size, whose only bucket is that square
  double max_aspect = 2;  // longer side divided by the shorter; at least 1
};

// Returns the buckets of `resolution`: its square and, for each shorter side below it in steps of about a sixteenth,
// the longest other side whose area does not exceed the square's, in landscape and in portrait. They are sorted by
// rising width to height. InvalidArgument if the rule does not allow the square itself; the message names the nearest
// allowed resolution.
absl::StatusOr<std::vector<Bucket>> BucketsOf(int64_t resolution, const BucketRule& rule);

// The index of the bucket whose aspect ratio is nearest to the picture's, by the logarithm of their quotient; the first
// of equals. `buckets` is not empty.
size_t NearestBucket(absl::Span<const Bucket> buckets, int width, int height);

}  // namespace tessera::control
