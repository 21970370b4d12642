#include "control/training/buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace tessera::control {
namespace {

using ::testing::ElementsAre;

TEST(BucketsTest, EveryBucketKeepsTheRule) {
  for (const int resolution : {64, 256, 512, 768, 1024}) {
    const BucketRule rule = {.multiple = 16, .min_side = 16, .max_side = 2048, .max_aspect = 2};
    const absl::StatusOr<std::vector<Bucket>> buckets = BucketsOf(resolution, rule);
    ASSERT_TRUE(buckets.ok()) << buckets.status();
    EXPECT_THAT(*buckets, ::testing::Contains(Bucket{resolution, resolution}));
    for (const Bucket& bucket : *buckets) {
      EXPECT_EQ(bucket.width % 16, 0);
      EXPECT_EQ(bucket.height % 16, 0);
      EXPECT_LE(bucket.width * bucket.height, resolution * resolution);
      EXPECT_LE(std::max(bucket.width, bucket.height), 2 * std::min(bucket.width, bucket.height));
      EXPECT_THAT(*buckets, ::testing::Contains(Bucket{bucket.height, bucket.width}));
      EXPECT_EQ(std::count(buckets->begin(), buckets->end(), bucket), 1);
    }
  }
}

TEST(BucketsTest, TheBucketsOf1024AreThoseThatTrainersUse) {
  const absl::StatusOr<std::vector<Bucket>> buckets = BucketsOf(1024, {.multiple = 64});
  ASSERT_TRUE(buckets.ok()) << buckets.status();
  EXPECT_THAT(*buckets, ElementsAre(Bucket{768, 1344}, Bucket{832, 1216}, Bucket{896, 1152}, Bucket{960, 1088},
                                    Bucket{1024, 1024}, Bucket{1088, 960}, Bucket{1152, 896}, Bucket{1216, 832},
                                    Bucket{1344, 768}));
}

TEST(BucketsTest, AModelOfOneSizeHasOneBucket) {
  const absl::StatusOr<std::vector<Bucket>> buckets = BucketsOf(256, {.multiple = 8, .min_side = 256, .max_side = 256});
  ASSERT_TRUE(buckets.ok()) << buckets.status();
  EXPECT_THAT(*buckets, ElementsAre(Bucket{256, 256}));
}

TEST(BucketsTest, AResolutionThatTheModelDoesNotTakeIsRefusedWithTheNearest) {
  const BucketRule rule = {.multiple = 16, .min_side = 100, .max_side = 1000};
  EXPECT_EQ(BucketsOf(500, rule).status().message(),
            "is 500; valid values for this model are multiples of 16 from 112 to 992, the nearest is 496");
  EXPECT_EQ(BucketsOf(1024, rule).status().message(),
            "is 1024; valid values for this model are multiples of 16 from 112 to 992, the nearest is 992");
}

TEST(BucketsTest, APictureGoesToTheBucketOfTheNearestProportions) {
  const std::vector<Bucket> buckets = {{48, 80}, {64, 64}, {80, 48}};
  EXPECT_EQ(NearestBucket(buckets, 1000, 1000), 1u);
  EXPECT_EQ(NearestBucket(buckets, 30, 50), 0u);
  EXPECT_EQ(NearestBucket(buckets, 4000, 100), 2u);
  EXPECT_EQ(NearestBucket(buckets, 100, 4000), 0u);
}

}  // namespace
}  // namespace tessera::control
