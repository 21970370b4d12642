#include "models/text_encoders/text_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tessera::models {
namespace {

using testing::HasSubstr;

std::unique_ptr<Tokenizer> Clip() { return *LoadTokenizer("CLIPTokenizer", "tests/golden/tokenizers/clip_full"); }

PlannedText Plan(const TextPlan& plan, const std::string& prompt, int64_t max_length) {
  return *PlanText(*Clip(), plan, prompt, max_length, "prompt", "text_encoder");
}

TEST(TextPlanTest, TheTemplateIsTokenizedTogetherWithThePrompt) {
  const PlannedText text = Plan({.before = "a photo of ", .after = " in rain"}, "a cat", 20);
  EXPECT_EQ(text.ids, Clip()->Encode("a photo of a cat in rain", 20)->ids);
  EXPECT_EQ(text.mask, std::vector<int64_t>(text.ids.size(), 1));
  EXPECT_EQ(text.tokens, static_cast<int64_t>(text.ids.size()));
}

TEST(TextPlanTest, ATemplateMayHaveTheStartAndEndTokensItself) {
  const std::vector<int64_t> framed = Clip()->Encode("a cat", 20)->ids;
  const PlannedText bare = Plan({.has_frame = true}, "a cat", 20);
  EXPECT_EQ(bare.ids, (std::vector<int64_t>{framed.begin() + 1, framed.end() - 1}));
  EXPECT_EQ(Plan({.has_frame = true}, "a cat", 1).ids, std::vector<int64_t>{framed[1]}) << "nothing is kept at the end";
}

TEST(TextPlanTest, DroppedTokensDoNotCountAgainstTheLength) {
  const std::string prompt = "one two three four five six seven eight";
  const PlannedText text = Plan({.before = "a photo of ", .kept = 1, .dropped = 3}, prompt, 6);
  EXPECT_EQ(text.ids, Clip()->Encode("a photo of " + prompt, 9)->ids);
  EXPECT_EQ(text.tokens, 6);
  EXPECT_EQ(text.dropped_from, 1);
  const int64_t whole = static_cast<int64_t>(Clip()->Encode("a photo of " + prompt, 99)->ids.size());
  ASSERT_EQ(text.warnings.size(), 1);
  EXPECT_THAT(text.warnings[0], HasSubstr("has " + std::to_string(whole - 3) + " tokens"));
  EXPECT_THAT(text.warnings[0], HasSubstr("was cut to 6"));
}

TEST(TextPlanTest, PaddingIsOnTheSideOfThePlanOrElseOfTheTokenizer) {
  const std::vector<int64_t> ids = Clip()->Encode("a cat", 10)->ids;
  const int64_t pad = Clip()->pad_id();
  ASSERT_EQ(ids.size(), 4);
  std::vector<int64_t> right = ids, left(3, pad);
  right.insert(right.end(), 3, pad);
  left.insert(left.end(), ids.begin(), ids.end());
  const PlannedText by_default = Plan({.padding = TextPadding::kMasked}, "a cat", 7);
  EXPECT_EQ(by_default.ids, right);
  EXPECT_EQ(by_default.mask, (std::vector<int64_t>{1, 1, 1, 1, 0, 0, 0}));
  const PlannedText on_left =
      Plan({.dropped = 1, .padding = TextPadding::kMasked, .side = PaddingSide::kLeft}, "a cat", 6);
  EXPECT_EQ(on_left.ids, left);
  EXPECT_EQ(on_left.mask, (std::vector<int64_t>{0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(on_left.dropped_from, 3);
  EXPECT_EQ(on_left.tokens, 3);
}

TEST(TextPlanTest, ATextWithoutTheTokensOfItsTemplateIsRefused) {
  const absl::Status status =
      PlanText(*Clip(), {.kept = 1, .dropped = 5}, "a cat", 20, "prompt", "text_encoder").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("the prompt has 4 tokens for text_encoder"));
}

TEST(TextPlanTest, PlansThatDifferHaveDifferentKeys) {
  const std::vector<TextPlan> plans = {{},
                                       {.before = "a"},
                                       {.after = "a"},
                                       {.before = "a1:", .after = ""},
                                       {.has_frame = true},
                                       {.kept = 1},
                                       {.dropped = 1},
                                       {.padding = TextPadding::kMasked},
                                       {.padding = TextPadding::kAttended},
                                       {.side = PaddingSide::kRight},
                                       {.side = PaddingSide::kLeft},
                                       {.states = {-2}},
                                       {.states = {9, 18}},
                                       {.states = {9, 1, 8}}};
  std::set<std::string> keys;
  for (const TextPlan& plan : plans) keys.insert(plan.Key());
  EXPECT_EQ(keys.size(), plans.size());
}

PlannedText Planned(std::vector<int64_t> ids) {
  PlannedText text{.ids = std::move(ids)};
  text.mask.assign(text.ids.size(), 1);
  text.tokens = static_cast<int64_t>(text.ids.size());
  return text;
}

TEST(TextPlanTest, ThePlaceholderOfAPictureIsRepeatedForEachOfItsUnits) {
  PlannedText text = Planned({1, 9, 2, 9, 3});
  ASSERT_TRUE(InsertPictures(text, 9, std::vector<int64_t>{3, 1}, "prompt").ok());
  EXPECT_EQ(text.ids, (std::vector<int64_t>{1, 9, 9, 9, 2, 9, 3}));
  EXPECT_EQ(text.mask, std::vector<int64_t>(7, 1));
  EXPECT_EQ(text.tokens, 7);
}

TEST(TextPlanTest, APromptThatContainsAPlaceholderIsRefused) {
  PlannedText text = Planned({1, 9, 2, 9, 3});
  const absl::Status status = InsertPictures(text, 9, std::vector<int64_t>{3}, "negative prompt");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the negative prompt contains <|image_pad|>"));
}

}  // namespace
}  // namespace tessera::models
