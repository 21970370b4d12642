#include "runtime/training/cut_captions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/prompt_request.h"
#include "models/loading/load_options.h"
#include "models/weights/model_folder.h"
#include "parallel/communicator.h"

namespace tessera::runtime {
namespace {

using ::testing::HasSubstr;

std::string Longer() {
  std::string text = "a house";
  for (int i = 0; i < 200; ++i) text += " and another house";
  return text;
}

// An image with its caption and the number of pictures at which the model looks.
std::string Pair(const std::string& picture, const std::string& caption, int pictures = 0) {
  return absl::StrCat(picture, std::string(1, '\0'), pictures, std::string(1, '\0'), caption, std::string(1, '\0'));
}

// What the model warns of when it encodes the caption with its weights.
std::string SaidByTheModel(const std::string& path, const std::string& caption) {
  const models::ModelFolder folder = *models::ModelFolder::Open(path);
  const models::FamilyEntry* entry = *models::FindFamily(folder.class_name());
  const models::FamilyDescription described = *entry->describe(folder);
  const std::unique_ptr<models::Family> family = *entry->load(folder, {});
  parallel::SingleRank one;
  parallel::LocalAttention attention;
  const absl::StatusOr<models::EncodedPrompt> encoded =
      family->Encode({.prompt = caption,
                      .options = {},
                      .clean_caption = described.default_clean_caption,
                      .max_sequence_length = described.default_max_sequence_length,
                      .height = described.default_height,
                      .width = described.default_width},
                     {.attention = attention, .tensor = one, .world = one});
  EXPECT_TRUE(encoded.ok()) << encoded.status();
  return encoded.ok() ? absl::StrJoin(encoded->warnings, "; ") : "";
}

TEST(FindCutCaptionsTest, SaysOfEveryFamilyWhatTheModelSaysWhenItEncodes) {
  for (const char* name : {"pixart_sigma", "pixart_alpha", "flux_dev", "flux_schnell", "sd3", "hunyuan11"}) {
    SCOPED_TRACE(name);
    const std::string model = absl::StrCat("tests/golden/pipelines/", name);
    const std::string said = SaidByTheModel(model, Longer());
    EXPECT_THAT(said, HasSubstr("was cut to"));
    const absl::StatusOr<std::string> found =
        FindCutCaptions(model, Pair("a.png", "a house") + Pair("b.png", Longer()) + Pair("c.png", ""));
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found,
              absl::StrCat("1 caption is longer than the model reads and will be cut: b.png; of the first ", said));
    EXPECT_EQ(*FindCutCaptions(model, Pair("a.png", "a house")), "");
  }
}

TEST(FindCutCaptionsTest, CountsEachPictureOnceAndNamesThree) {
  std::string captions;
  for (const char* picture : {"a", "b", "a", "c", "d", "e"}) captions += Pair(picture, Longer());
  const absl::StatusOr<std::string> found = FindCutCaptions("tests/golden/pipelines/pixart_sigma", captions);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(
      *found,
      HasSubstr("5 captions are longer than the model reads and will be cut: a, b, c and 2 more; of the first"));
}

TEST(FindCutCaptionsTest, ReadsCaptionsThatHoldPictures) {
  std::string longest;
  for (int i = 0; i < 5; ++i) longest += Longer();
  const absl::StatusOr<std::string> found = FindCutCaptions("tests/golden-edit/pipelines/qwen_edit_2511",
                                                            Pair("a.png", "a house", 1) + Pair("b.png", longest, 3));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(*found, HasSubstr("1 caption is longer than the model reads and will be cut: b.png; of the first "));
}

TEST(FindCutCaptionsTest, NamesThePictureOfACaptionThatTheModelDoesNotTake) {
  const absl::Status refused =
      FindCutCaptions("tests/golden/pipelines/dit", Pair("a.png", "1") + Pair("b.png", "a house")).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("b.png: prompt is \"a house\"; valid for this model is a class"));
}

}  // namespace
}  // namespace tessera::runtime
