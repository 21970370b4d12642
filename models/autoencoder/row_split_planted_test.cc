#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/opened_autoencoder.h"
#include "tests/support/planted_bug.h"

namespace tessera::models {
namespace {

struct RowSplitBug {
  const char *name, *model;
};

class PlantedRowSplitTest : public testing::TestWithParam<RowSplitBug> {};

TEST_P(PlantedRowSplitTest, IsFarBeyondTheToleranceAndNothingElseIs) {
  const OpenedAutoencoder opened(GetParam().model, at::kDouble);
  const at::Tensor latents = opened.Latents(8, 6), serial = opened.DecodeSerially(latents);
  {
    const PlantedBug planted(GetParam().name);
    EXPECT_GT(RelativeError(opened.DecodeOn(2, latents), serial), 1e-6);
  }
  EXPECT_LE(RelativeError(opened.DecodeOn(2, latents), serial), 1e-12);
}

TEST_P(PlantedRowSplitTest, IsFarBeyondTheToleranceOfEncodingAndNothingElseIs) {
  const OpenedAutoencoder opened(GetParam().model, at::kDouble);
  const at::Tensor image = opened.Image(8, 6), serial = opened.EncodeSerially(image);
  {
    const PlantedBug planted(GetParam().name);
    EXPECT_GT(RelativeError(opened.EncodeOn(2, image)[1], serial), 1e-6);
  }
  EXPECT_LE(RelativeError(opened.EncodeOn(2, image)[1], serial), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Bugs, PlantedRowSplitTest,
                         testing::Values(RowSplitBug{"group_norm_local_rows", "published_shape"},
                                         RowSplitBug{"halo_omitted", "published_shape"},
                                         RowSplitBug{"group_norm_local_rows", "flux2"},
                                         RowSplitBug{"halo_omitted", "flux2"},
                                         RowSplitBug{"halo_omitted", "qwen_image"}),
                         [](const auto& info) { return absl::StrCat(info.param.name, "_", info.param.model); });

}  // namespace
}  // namespace tessera::models
