#include "client/cli/batch/disk_estimate.h"

#include <gtest/gtest.h>

namespace tessera::client {
namespace {

using server::ImageFormat;

RunImage Png(int32_t side, uint64_t bytes) {
  return {.file = "images/000/000000.png", .width = side, .height = side, .bytes = bytes};
}

TEST(DiskEstimateTest, TakesAPartOfThePixelsWhereNothingIsKnown) {
  DiskEstimate estimate;
  EXPECT_EQ(estimate.bytes(), 0u);
  estimate.Add(100, 10, ImageFormat::kPng, 5);
  EXPECT_EQ(estimate.bytes(), 5u * 1000 * 18 / 10);
  estimate.Add(100, 10, ImageFormat::kJpeg, 1);
  EXPECT_EQ(estimate.bytes(), 9000u + 900);
}

TEST(DiskEstimateTest, GoesByImagesOfTheRun) {
  DiskEstimate estimate;
  estimate.Learn(Png(10, 100));
  estimate.Learn(Png(10, 300));
  estimate.Learn(Png(20, 1200));
  estimate.Add(10, 10, ImageFormat::kPng, 10);
  EXPECT_EQ(estimate.bytes(), 10u * 200) << "those of its size";
  estimate.Add(30, 10, ImageFormat::kPng, 1);
  EXPECT_EQ(estimate.bytes(), 2000u + 300 * 1600 / 600) << "those of its format";
  estimate.Add(10, 10, ImageFormat::kWebp, 1);
  EXPECT_EQ(estimate.bytes(), 2800u + 150) << "none of its format";
}

}  // namespace
}  // namespace tessera::client
