// Aspect-ratio buckets: the few sizes that the pictures of a run are brought to, so that those of one batch are alike.
// Pure.
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

// What sizes a model takes, as its description says.
struct BucketRule {
  int multiple = 16;  // of both sides
  int min_side = 16;
  int max_side = 16384;   // min_side == max_side: a model of one size has one bucket, its square
  double max_aspect = 2;  // of the longer side to the shorter; at least 1
};

// The buckets of `resolution`: its square, and for each shorter side below it, in steps of about a sixteenth, the
// longest other side whose area is no larger than the square's; each lying and standing. In order of rising width to
// height. InvalidArgument where the rule does not allow the square itself: the nearest resolution that it allows is
// named.
absl::StatusOr<std::vector<Bucket>> BucketsOf(int64_t resolution, const BucketRule& rule);

// The index of the bucket whose proportions are nearest to those of a picture, by the logarithm of their ratio; of
// several the first. `buckets` is not empty.
size_t NearestBucket(absl::Span<const Bucket> buckets, int width, int height);

}  // namespace tessera::control
