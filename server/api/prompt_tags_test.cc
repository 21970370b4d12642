#include "server/api/prompt_tags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fields/field_error.h"
#include "server/api/request_values.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const AdapterNames kTagNames = {{"grain", "grain"}, {"style", "folder/style.safetensors"}};

TEST(PromptTagsTest, ATagBecomesAnAdapterAndItsTextIsTakenOut) {
  const AdapterRequest style = {.name = "folder/style.safetensors", .scale = 0.8};
  for (const auto& [prompt, rest] : std::vector<std::pair<std::string, std::string>>{
           {"a cat <lora:style:0.8>", "a cat"},
           {"<lora:style:0.8> a cat", "a cat"},
           {"<lora:style:0.8>a cat", "a cat"},
           {"a <lora:style:0.8> cat", "a cat"},
           {"a<lora:style:0.8> cat", "a cat"},
           {"a cat, <lora:style:0.8>, blue", "a cat, , blue"},
           {"a cat\n<lora:style:0.8>\nblue", "a cat\nblue"},
           {"a cat < LoRA : style : 8e-1 >", "a cat"},
           {"<lora:style:0.8>", ""},
       }) {
    ImageRequest request = {.prompt = prompt};
    ASSERT_EQ(TakePromptTags(kTagNames, request), absl::OkStatus()) << prompt;
    EXPECT_EQ(request.prompt, rest) << prompt;
    EXPECT_THAT(request.loras, ElementsAre(style)) << prompt;
  }
}

TEST(PromptTagsTest, TagsFollowTheListAndGiveTheScaleOfAnAdapterThatItHasWithoutOne) {
  ImageRequest request = {.prompt = "<lora:grain:-2> a <lora:style>"};
  request.loras = {{.name = "folder/style.safetensors"}};
  ASSERT_EQ(TakePromptTags(kTagNames, request), absl::OkStatus());
  EXPECT_THAT(request.loras, ElementsAre(AdapterRequest{.name = "folder/style.safetensors", .scale = 1},
                                         AdapterRequest{.name = "grain", .scale = -2}));
  request = {.prompt = "a <lora:style:0>"};
  request.loras = {{.name = "folder/style.safetensors"}};
  ASSERT_EQ(TakePromptTags(kTagNames, request), absl::OkStatus());
  EXPECT_THAT(request.loras, ElementsAre(AdapterRequest{.name = "folder/style.safetensors", .scale = 0}));
}

TEST(PromptTagsTest, APromptWithoutATagStaysAsItIs) {
  for (const char* prompt : {"", " a  cat ", "a < b > c", "<sks> lora:style:1", "<lorax:style>", "<loras:style>", "<lo",
                             "lora", "<hypernet:style:1>", "a \xe2\x89\xa4 b <\xe2\x80\xa6"}) {
    ImageRequest request = {.prompt = prompt, .negative_prompt = prompt, .prompt_2 = prompt};
    EXPECT_EQ(TakePromptTags({}, request), absl::OkStatus()) << prompt;
    EXPECT_EQ(request.prompt, prompt);
    EXPECT_TRUE(request.loras.empty());
  }
}

TEST(PromptTagsTest, ATagThatIsNotUnderstoodIsRefusedWithTheFieldTheAdapterAndTheValidNames) {
  const std::string malformed = "which is malformed; valid tags are <lora:NAME> and <lora:NAME:SCALE>";
  for (const auto& [prompt, message] : std::vector<std::pair<std::string, std::string>>{
           {"a <lora:styl:0.8>",
            "prompt has '<lora:styl:0.8>': the adapter 'styl' is unknown; valid values are grain, style; did you mean "
            "'style'?"},
           {"a <lora:style:much>", "its scale is 'much'; it must be a number from -16 to 16"},
           {"a <lora:style:16.5>", "its scale is '16.5'; it must be a number from -16 to 16"},
           {"a <lora:style:nan>", "its scale is 'nan'"},
           {"a <lora:style:>", "its scale is ''"},
           {"a <lora:style:1", malformed},
           {"a <lora:style:1:2>", malformed},
           {"a <lora::1>", malformed},
           {"a <lora:>", malformed},
           {"a <lora style:1>", malformed},
           {"a <lora>", malformed},
           {"a <lora", malformed},
           // Nothing that is left when a tag is taken out is a tag.
           {"a <lo<lora:style:1>ra:grain:x>", "its scale is 'x'"},
           {"<lora:style:1> <lora:style:1>", "the adapter 'style' already has the scale 1; give it one scale"},
       }) {
    ImageRequest request = {.prompt = prompt};
    const absl::Status status = TakePromptTags(kTagNames, request);
    EXPECT_EQ(base::FieldOf(status), "prompt") << prompt;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << prompt;
  }
  ImageRequest request = {.prompt = "a <lora:style:0.5>"};
  request.loras = {{.name = "folder/style.safetensors", .scale = 0.8}};
  EXPECT_THAT(std::string(TakePromptTags(kTagNames, request).message()), HasSubstr("already has the scale 0.8"));
  request = {.prompt = "a <lora:style:0.5>"};
  EXPECT_THAT(std::string(TakePromptTags({}, request).message()),
              HasSubstr("the adapter 'style' is unknown; no adapters are known here"));
  AdapterNames many;
  for (int i = 0; i < 40; ++i) many.emplace(absl::StrCat("look-", i), "");
  request = {.prompt = "a <lora:loook-7>"};
  EXPECT_THAT(std::string(TakePromptTags(many, request).message()),
              HasSubstr("GET /v1/models lists 40 valid names; did you mean 'look-7'?"));
}

TEST(PromptTagsTest, OtherPromptsMayHaveNoTag) {
  const std::string tag = "a <lora:style:1>";
  for (const auto& [field, request] : std::vector<std::pair<std::string, ImageRequest>>{
           {"negative_prompt", {.prompt = "a", .negative_prompt = tag}},
           {"prompt_2", {.prompt = "a", .prompt_2 = tag}},
           {"prompt_3", {.prompt = "a", .prompt_3 = tag}},
           {"negative_prompt_2", {.prompt = "a", .negative_prompt_2 = tag}},
           {"negative_prompt_3", {.prompt = "a", .negative_prompt_3 = tag}},
       }) {
    ImageRequest tagged = request;
    const absl::Status status = TakePromptTags(kTagNames, tagged);
    EXPECT_EQ(base::FieldOf(status), field);
    EXPECT_THAT(std::string(status.message()), HasSubstr("has '<lora:style:1>'; an adapter changes the whole image"));
  }
}

}  // namespace
}  // namespace tessera::server
