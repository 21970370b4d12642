#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "models/text_encoders/text_encoder_config.h"

namespace tessera::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kFields[] =
    R"("vocab_size": 7, "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32,
       "num_hidden_layers": 31)";

struct Parsed {
  DecoderConfig config;
  std::string error;
};

Parsed Parse(const std::string& text) {
  absl::StatusOr<base::ConfigReader> reader = base::ConfigReader::FromText(text, "config.json");
  EXPECT_TRUE(reader.ok()) << reader.status();
  Parsed parsed{.config = ParseMistral3Config(*reader)};
  parsed.error = std::string(reader->status().message());
  return parsed;
}

Parsed ParseText(const std::string& fields) {
  return Parse(absl::StrCat("{\"text_config\": {", kFields, fields, "}, \"vision_config\": {\"depth\": 1}}"));
}

TEST(Mistral3ConfigTest, TheBaseOfRotaryPositionsIsReadFromEitherForm) {
  EXPECT_EQ(ParseText(R"(, "rope_theta": 5e8)").config.rope_theta, 5e8);
  EXPECT_EQ(ParseText(R"(, "rope_parameters": {"rope_theta": 3e6, "rope_type": "default"})").config.rope_theta, 3e6);
  EXPECT_EQ(ParseText("").config.rope_theta, 1e9) << "the default of the reference's class";
}

TEST(Mistral3ConfigTest, HeadsHaveTheirOwnWidthAndNeitherNormsNorBiases) {
  const Parsed parsed = ParseText(R"(, "head_dim": 8)");
  EXPECT_EQ(parsed.error, "");
  EXPECT_EQ(parsed.config.head_dim, 8);
  EXPECT_EQ(parsed.config.kv_heads, 2);
  EXPECT_FALSE(parsed.config.qk_norm);
  EXPECT_FALSE(parsed.config.qkv_bias);
  EXPECT_EQ(ParseText("").config.head_dim, 6);
}

TEST(Mistral3ConfigTest, RefusesWhatIsNotBuiltByName) {
  EXPECT_EQ(ParseText(R"(, "sliding_window": null)").error, "");
  EXPECT_THAT(ParseText(R"(, "sliding_window": 4096)").error, AllOf(HasSubstr("sliding_window"), HasSubstr("null")));
  EXPECT_THAT(ParseText(R"(, "head_dim": 7)").error, HasSubstr("head_dim"));
  EXPECT_THAT(Parse("{}").error, HasSubstr("text_config"));
  EXPECT_THAT(Parse(R"({"text_config": 3})").error, HasSubstr("text_config"));
}

}  // namespace
}  // namespace tessera::models
