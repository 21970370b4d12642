#include "control/training/buckets.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace tessera::control {
namespace {

constexpr int kStepsOfASide = 16;

double Aspect(const Bucket& bucket) { return static_cast<double>(bucket.width) / bucket.height; }

}  // namespace

std::string BucketText(const Bucket& bucket) { return absl::StrCat(bucket.width, "x", bucket.height); }

absl::StatusOr<std::vector<Bucket>> BucketsOf(int64_t resolution, const BucketRule& rule) {
  const int64_t multiple = rule.multiple;
  const int64_t low = (rule.min_side + multiple - 1) / multiple * multiple, high = rule.max_side / multiple * multiple;
  if (resolution % multiple != 0 || resolution < low || resolution > high) {
    const int64_t nearest = std::clamp((resolution + multiple / 2) / multiple * multiple, low, std::max(low, high));
    return absl::InvalidArgumentError(absl::StrCat("is ", resolution, "; valid values for this model are multiples of ",
                                                   multiple, " from ", low, " to ", high, ", the nearest is ",
                                                   nearest));
  }
  const int64_t step = std::max<int64_t>(resolution / kStepsOfASide / multiple, 1) * multiple;
  std::vector<Bucket> buckets;
  for (int64_t shorter = resolution; shorter >= low; shorter -= step) {
    const int64_t longer = resolution * resolution / shorter / multiple * multiple;
    if (longer > high || static_cast<double>(longer) > rule.max_aspect * static_cast<double>(shorter)) break;
    buckets.push_back({static_cast<int>(longer), static_cast<int>(shorter)});
    if (longer != shorter) buckets.push_back({static_cast<int>(shorter), static_cast<int>(longer)});
  }
  std::sort(buckets.begin(), buckets.end(), [](const Bucket& a, const Bucket& b) { return Aspect(a) < Aspect(b); });
  return buckets;
}

size_t NearestBucket(absl::Span<const Bucket> buckets, int width, int height) {
  const double aspect = static_cast<double>(width) / height;
  const auto distance = [aspect](const Bucket& bucket) { return std::abs(std::log(Aspect(bucket) / aspect)); };
  const auto nearest = std::min_element(buckets.begin(), buckets.end(),
                                        [&](const Bucket& a, const Bucket& b) { return distance(a) < distance(b); });
  return static_cast<size_t>(nearest - buckets.begin());
}

}  // namespace tessera::control
