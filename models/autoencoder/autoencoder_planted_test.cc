#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "tests/support/opened_autoencoder.h"
#include "tests/support/planted_bug.h"
#include "tests/support/test_folder.h"

namespace tessera::models {
namespace {

// Returns whether channel 4 c + 2 i + j of FLUX.2's latents is row i and column j of the patches of channel c. Its
// batch normalisation is measured on latents of zeros and ones.
bool PatchesAreChannelRowColumn() {
  const OpenedAutoencoder opened("flux2", at::kDouble);
  const at::Tensor z = Random({1, 4, 6, 10}, 7);
  const at::Tensor shift = opened.autoencoder->LatentsOf(at::zeros_like(z)),
                   scale = opened.autoencoder->LatentsOf(at::ones_like(z)) - shift;
  const at::Tensor patches = (opened.autoencoder->LatentsOf(z) - shift) / scale;  // [1, 16, 3, 5]
  double error = 0;
  for (int64_t channel = 0; channel < 16; ++channel) {
    const int64_t c = channel / 4, i = channel / 2 % 2, j = channel % 2;
    const at::Tensor expected = z.select(1, c).slice(1, i, 6, 2).slice(2, j, 10, 2);
    error = std::max(error, (patches.select(1, channel) - expected).abs().max().item<double>());
  }
  return error < 1e-12;
}

TEST(PlantedAutoencoderTest, PatchesInAnotherOrderOfChannels) {
  EXPECT_TRUE(PatchesAreChannelRowColumn());
  const PlantedBug planted("patch_channels_fastest");
  EXPECT_FALSE(PatchesAreChannelRowColumn());
}

// Returns whether a convolution of videos, [1, 1, 3, 1, 1] in the file, has its last value.
bool TheLastSliceIsLoaded() {
  const TestFolder folder;
  std::string header = R"({"conv.weight": {"dtype": "F32", "shape": [1, 1, 3, 1, 1], "data_offsets": [0, 12]}})";
  header.resize(header.size() / 8 * 8 + 8, ' ');
  const uint64_t length = header.size();
  const float values[] = {1, 2, 3};
  std::string file(sizeof(length), '\0'), data(sizeof(values), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  std::memcpy(data.data(), values, sizeof(values));
  folder.Write("model.safetensors", file + header + data);
  ParamTable table(at::kFloat, at::kCPU);
  const std::shared_ptr<at::Tensor> weight = ParamScope(table, "conv").AddConvolution("weight", {1, 1, 3, 1, 1});
  const absl::StatusOr<WeightFolder> weights = WeightFolder::Open(folder.path(), "vae");
  EXPECT_TRUE(weights.ok() && LoadWeights(*weights, table, "vae").ok());
  return weight->item<float>() == 3;
}

TEST(PlantedAutoencoderTest, TheFirstSliceInTimeInPlaceOfTheLast) {
  EXPECT_TRUE(TheLastSliceIsLoaded());
  const PlantedBug planted("first_slice_in_time");
  EXPECT_FALSE(TheLastSliceIsLoaded());
}

}  // namespace
}  // namespace tessera::models
