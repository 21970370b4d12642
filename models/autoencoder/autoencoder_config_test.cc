#include "models/autoencoder/autoencoder_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tessera::models {
namespace {

absl::StatusOr<AutoencoderConfig> ParseFlux2(const std::string& text) {
  absl::StatusOr<base::ConfigReader> reader = base::ConfigReader::FromText(text, "vae/config.json");
  if (!reader.ok()) return reader.status();
  return ParseFlux2AutoencoderConfig(*reader);
}

TEST(Flux2AutoencoderConfigTest, HasPatchesOfTwoAndBatchNormalisation) {
  const absl::StatusOr<AutoencoderConfig> config =
      ParseFlux2(R"({"block_out_channels": [32, 64], "decoder_block_out_channels": [64, 96], "batch_norm_eps": 0.01})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->latent_channels, 32);
  EXPECT_EQ(config->patch, 2);
  EXPECT_EQ(config->batch_norm_eps, 0.01);
  EXPECT_EQ(config->widths_of_decoder(), std::vector<int64_t>({64, 96}));
  EXPECT_EQ(ParseFlux2(R"({"decoder_block_out_channels": null})")->widths_of_decoder(), std::vector<int64_t>({64}));
}

TEST(Flux2AutoencoderConfigTest, ErrorsNameTheFieldAndTheValidValues) {
  const auto expect = [](const char* text, const char* field, const char* valid) {
    const absl::Status status = ParseFlux2(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), testing::AllOf(testing::HasSubstr(field), testing::HasSubstr(valid)));
  };
  expect(R"({"patch_size": [1, 2]})", "patch_size", "it must be [2, 2]");
  expect(R"({"batch_norm_eps": -1})", "batch_norm_eps", "-1");
  expect(R"({"decoder_block_out_channels": [32, 64]})", "decoder_block_out_channels",
         "as many entries as block_out_channels");
  expect(R"({"decoder_block_out_channels": [33]})", "decoder_block_out_channels", "a multiple of norm_num_groups = 32");
  expect(R"({"up_block_types": ["AttnUpBlock2D"]})", "up_block_types", "UpDecoderBlock2D");
}

}  // namespace
}  // namespace tessera::models
