#include "models/flux2/flux2_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

absl::StatusOr<Flux2Config> Parse(std::string_view text) {
  absl::StatusOr<base::ConfigReader> reader = base::ConfigReader::FromText(text, "config.json");
  EXPECT_TRUE(reader.ok()) << reader.status();
  return ParseFlux2Config(*reader);
}

std::string ErrorOf(std::string_view text) { return std::string(Parse(text).status().message()); }

TEST(Flux2ConfigTest, AbsentFieldsAreThoseOfDev) {
  const absl::StatusOr<Flux2Config> config = Parse("{}");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->width(), 6144);
  EXPECT_EQ(config->mlp_width, 18432);
  EXPECT_EQ(config->latent_channels(), 32);
  EXPECT_EQ(config->double_blocks, 8);
  EXPECT_EQ(config->single_blocks, 48);
  EXPECT_TRUE(config->guidance) << "only a field of klein's file says that there is none";
}

TEST(Flux2ConfigTest, TheMlpsWidthIsCutToAnInteger) {
  const absl::StatusOr<Flux2Config> config =
      Parse(R"({"num_attention_heads": 3, "attention_head_dim": 8, "axes_dims_rope": [2, 2, 2, 2], "mlp_ratio": 2.6})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->mlp_width, 62);
}

TEST(Flux2ConfigTest, NamesTheFieldItsValueAndWhatIsValid) {
  EXPECT_THAT(ErrorOf(R"({"attention_head_dim": 64})"), AllOf(HasSubstr("axes_dims_rope"), HasSubstr("= 64")));
  EXPECT_THAT(ErrorOf(R"({"axes_dims_rope": [32, 48, 48]})"),
              AllOf(HasSubstr("axes_dims_rope"), HasSubstr("4 entries")));
  EXPECT_THAT(ErrorOf(R"({"axes_dims_rope": [31, 33, 32, 32]})"),
              AllOf(HasSubstr("axes_dims_rope"), HasSubstr("even")));
  EXPECT_THAT(ErrorOf(R"({"in_channels": 30})"), AllOf(HasSubstr("in_channels"), HasSubstr("30")));
  EXPECT_THAT(ErrorOf(R"({"out_channels": 64})"),
              AllOf(HasSubstr("out_channels"), HasSubstr("64"), HasSubstr("= 128")));
  EXPECT_THAT(ErrorOf(R"({"patch_size": 2})"), AllOf(HasSubstr("patch_size"), HasSubstr("2")));
  EXPECT_THAT(ErrorOf(R"({"mlp_ratio": -1})"), AllOf(HasSubstr("mlp_ratio"), HasSubstr("-1")));
  EXPECT_THAT(ErrorOf(R"({"num_layers": 0, "num_single_layers": 0})"), HasSubstr("num_layers"));
  EXPECT_THAT(ErrorOf(R"({"timestep_guidance_channels": 255})"), HasSubstr("timestep_guidance_channels"));
}

}  // namespace
}  // namespace tessera::models
