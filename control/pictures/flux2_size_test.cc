// Expected values are those of diffusers' image processor of FLUX.2; tests/golden-edit/functions/flux2_sizes.json has
// more.
#include "control/pictures/flux2_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "control/pictures/made_up_frames.h"
#include "control/pictures/picture_input.h"
#include "control/pictures/reference_size.h"

namespace tessera::control {
namespace {

using ::testing::HasSubstr;

ReferenceSize SizeOf(int width, int height) { return Flux2ReferenceSize({width, height}).value_or(ReferenceSize()); }

TEST(Flux2SizeTest, AReferenceIsCutToMultiplesOf16AndScaledOnlyIfItIsLarge) {
  EXPECT_EQ(SizeOf(151, 97), (ReferenceSize{.scaled = {151, 97}, .read = {144, 96}}));
  EXPECT_EQ(SizeOf(1024, 1024), (ReferenceSize{.scaled = {1024, 1024}, .read = {1024, 1024}}));
  EXPECT_EQ(SizeOf(1025, 1024), (ReferenceSize{.scaled = {1024, 1023}, .read = {1024, 1008}}));
  EXPECT_EQ(SizeOf(1040, 1010), (ReferenceSize{.scaled = {1039, 1009}, .read = {1024, 1008}}));
}

TEST(Flux2SizeTest, SmallAndLongReferencesAreRefusedByTheirSize) {
  EXPECT_TRUE(CheckFlux2Reference({64, 64}).ok());
  EXPECT_THAT(std::string(CheckFlux2Reference({63, 200}).message()), HasSubstr("63x200"));
  EXPECT_TRUE(CheckFlux2Reference({512, 64}).ok());
  EXPECT_THAT(std::string(CheckFlux2Reference({513, 64}).message()), HasSubstr("at most 8 times"));
  EXPECT_FALSE(CheckFlux2Reference({std::numeric_limits<int>::max(), 64}).ok());
  EXPECT_FALSE(Flux2ReferenceSize({15, 64}).ok()) << "nothing is left of it";
  EXPECT_FALSE(Flux2ReferenceSize({0, 64}).ok());
}

TEST(Flux2SizeTest, AnImageThatBeginsFromAPictureHasItsSize) {
  EXPECT_EQ(Flux2StartSize({151, 97}), (PictureSize{144, 96}));
  EXPECT_EQ(Flux2StartSize({3000, 2000}), (PictureSize{1248, 832}));
  EXPECT_EQ(Flux2StartSize({10, 40}), (PictureSize{16, 32}));
}

TEST(Flux2SizeTest, TheMiddleOfAReferenceIsRead) {
  const Frames picture = NoiseFrame(70, 133, 3);
  const absl::StatusOr<Frames> read = FitReference(ReferenceFit::kFlux2, picture);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->width, 64);
  ASSERT_EQ(read->height, 128);
  // 3 columns are left out on each side, and 2 rows above.
  EXPECT_EQ(read->bytes[0], picture.bytes[3 * (2 * 70 + 3)]);
  EXPECT_EQ(read->bytes.back(), picture.bytes[3 * (129 * 70 + 66) + 2]);
}

}  // namespace
}  // namespace tessera::control
