#include <gtest/gtest.h>

#include "tests/support/opened_autoencoder.h"
#include "tests/support/planted_bug.h"

namespace tessera::models {
namespace {

class PlantedRowSplitTest : public testing::TestWithParam<const char*> {};

TEST_P(PlantedRowSplitTest, IsFarBeyondTheToleranceAndNothingElseIs) {
  const OpenedAutoencoder opened("", at::kDouble);
  const at::Tensor latents = opened.Latents(8, 6), serial = opened.DecodeSerially(latents);
  {
    const PlantedBug planted(GetParam());
    EXPECT_GT(RelativeError(opened.DecodeOn(2, latents), serial), 1e-6);
  }
  EXPECT_LE(RelativeError(opened.DecodeOn(2, latents), serial), 1e-12);
}

TEST_P(PlantedRowSplitTest, IsFarBeyondTheToleranceOfEncodingAndNothingElseIs) {
  const OpenedAutoencoder opened("", at::kDouble);
  const at::Tensor image = opened.Image(8, 6), serial = opened.EncodeSerially(image);
  {
    const PlantedBug planted(GetParam());
    EXPECT_GT(RelativeError(opened.EncodeOn(2, image)[1], serial), 1e-6);
  }
  EXPECT_LE(RelativeError(opened.EncodeOn(2, image)[1], serial), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Bugs, PlantedRowSplitTest, testing::Values("group_norm_local_rows", "halo_omitted"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::models
