#include "models/qwen_image/qwen_image_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace tessera::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

absl::StatusOr<QwenImageConfig> Parse(std::string_view text) {
  absl::StatusOr<base::ConfigReader> reader = base::ConfigReader::FromText(text, "config.json");
  EXPECT_TRUE(reader.ok()) << reader.status();
  return ParseQwenImageConfig(*reader);
}

std::string ErrorOf(std::string_view text) { return std::string(Parse(text).status().message()); }

TEST(QwenImageConfigTest, AbsentFieldsAreThoseOfThePublishedModel) {
  const absl::StatusOr<QwenImageConfig> config = Parse(R"({"pooled_projection_dim": 768})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->width(), 3072);
  EXPECT_EQ(config->layers, 60);
  EXPECT_EQ(config->text_width, 3584);
  EXPECT_EQ(config->latent_channels(), 16);
}

TEST(QwenImageConfigTest, RefusesByNameWhatTheModelHereDoesNotDo) {
  for (const char* field : {"guidance_embeds", "use_additional_t_cond", "use_layer3d_rope"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat("{\"", field, "\": true}")), AllOf(HasSubstr(field), HasSubstr("true")));
    EXPECT_TRUE(Parse(absl::StrCat("{\"", field, "\": false}")).ok());
  }
}

TEST(QwenImageConfigTest, ReferencesHaveTheModulationOfTheTimestepUnlessTheFileSaysOtherwise) {
  EXPECT_FALSE(Parse("{}")->clean_references);
  EXPECT_TRUE(Parse(R"({"zero_cond_t": true})")->clean_references);
}

TEST(QwenImageConfigTest, NamesTheFieldItsValueAndWhatIsValid) {
  EXPECT_THAT(ErrorOf(R"({"attention_head_dim": 64})"), AllOf(HasSubstr("axes_dims_rope"), HasSubstr("= 64")));
  EXPECT_THAT(ErrorOf(R"({"axes_dims_rope": [64, 64]})"), AllOf(HasSubstr("axes_dims_rope"), HasSubstr("3 entries")));
  EXPECT_THAT(ErrorOf(R"({"axes_dims_rope": [16, 55, 57]})"), AllOf(HasSubstr("axes_dims_rope"), HasSubstr("even")));
  EXPECT_THAT(ErrorOf(R"({"out_channels": 15})"), AllOf(HasSubstr("out_channels"), HasSubstr("15"), HasSubstr("= 64")));
  EXPECT_THAT(ErrorOf(R"({"num_layers": 0})"), AllOf(HasSubstr("num_layers"), HasSubstr("0")));
}

}  // namespace
}  // namespace tessera::models
