#include "models/autoencoder/qwen_autoencoder_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_replace.h"

namespace tessera::models {
namespace {

constexpr char kConfig[] = R"({"z_dim": 2, "base_dim": 6, "dim_mult": [1, 2, 3], "num_res_blocks": 1, "attn_scales": [],
    "temperal_downsample": [false, true], "dropout": 0.0, "latents_mean": [0.5, -1], "latents_std": [2, 0.25]})";

absl::StatusOr<QwenAutoencoderConfig> Parse(const std::string& text) {
  absl::StatusOr<base::ConfigReader> reader = base::ConfigReader::FromText(text, "vae/config.json");
  if (!reader.ok()) return reader.status();
  return ParseQwenAutoencoderConfig(*reader);
}

TEST(QwenAutoencoderConfigTest, EnlargementsHalveTheChannelsOfTheDecoder) {
  const absl::StatusOr<QwenAutoencoderConfig> config = Parse(kConfig);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->factor(), 4);
  EXPECT_EQ(config->channels(2), 18);
  EXPECT_EQ(config->decoder_input(2), 18);
  EXPECT_EQ(config->decoder_input(1), 9);
  EXPECT_EQ(config->decoder_input(0), 6);
  EXPECT_EQ(config->halves_time, std::vector<bool>({false, true}));
  EXPECT_EQ(config->deviations, std::vector<double>({2, 0.25}));
}

TEST(QwenAutoencoderConfigTest, ErrorsNameTheFieldAndTheValidValues) {
  const auto expect = [](const char* before, const char* after, const char* field, const char* valid) {
    const absl::Status status = Parse(absl::StrReplaceAll(kConfig, {{before, after}})).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << after;
    EXPECT_THAT(std::string(status.message()), testing::AllOf(testing::HasSubstr(field), testing::HasSubstr(valid)));
  };
  expect("[false, true]", "[false]", "temperal_downsample", "a list of 2 values, true or false");
  expect("[false, true]", "[0, 1]", "temperal_downsample", "a list of 2 values, true or false");
  expect("\"temperal_downsample\": [false, true],", "", "temperal_downsample", "missing");
  expect("[0.5, -1]", "[0.5]", "latents_mean", "it must have 2 numbers");
  expect("[2, 0.25]", "[2, 0]", "latents_std", "greater than 0");
  expect("[2, 0.25]", "null", "latents_std", "it must have 2 numbers");
  expect("\"attn_scales\": []", "\"attn_scales\": [0.5]", "attn_scales", "it must be empty");
  expect("\"dim_mult\": [1, 2, 3]", "\"dim_mult\": []", "dim_mult", "1 to 8 entries");
  expect("\"base_dim\": 6", "\"base_dim\": 5", "dim_mult", "an even number of channels");
}

}  // namespace
}  // namespace tessera::models
