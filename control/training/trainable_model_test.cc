#include "control/training/trainable_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control/model/model_description.h"
#include "control/training/config.h"

namespace tessera::control {
namespace {

using ::testing::HasSubstr;

TEST(CheckTrainableTest, RefusesModelsThatAreTrainedOnMoreThanImagesAndCaptions) {
  EXPECT_TRUE(CheckTrainable({}).ok());
  EXPECT_TRUE(CheckTrainable(kStartsFromPicture).ok()) << "image to image needs no training";
  EXPECT_THAT(std::string(CheckTrainable(kFillsPicture).message()), HasSubstr("FLUX.1 Fill"));
  for (const PictureRules& editor : {kKontextPictures, kQwenEditPictures, kQwenEditPlusPictures}) {
    EXPECT_TRUE(CheckTrainable(editor).ok()) << static_cast<int>(editor.fit);
  }
  EXPECT_TRUE(CheckTrainable({.use = PictureInput::kReference, .most = 4, .fit = ReferenceFit::kFlux2}).ok())
      << "it makes images from text, too";
}

TEST(CheckDistillationTest, ADistilledModelIsTrainedWithAnAssistantOrByConsentOnly) {
  const ModelDescription base = {.default_steps = 50}, distilled = {.default_steps = 9, .base_model = "Z-Image"};
  TrainConfig config;
  EXPECT_TRUE(CheckDistillation(config, base).ok());
  EXPECT_EQ(CheckDistillation(config, distilled).message(),
            "model is distilled to 9 steps, which training undoes; train Z-Image in its place, set "
            "train.assistant_adapter to the adapter that was made for this, or consent with train.break_distillation: "
            "true");
  config.train.break_distillation = true;
  EXPECT_TRUE(CheckDistillation(config, distilled).ok());
  EXPECT_TRUE(CheckDistillation(config, base).ok());
  config.train.break_distillation = false;
  config.train.assistant_adapter = "assistant.safetensors";
  EXPECT_TRUE(CheckDistillation(config, distilled).ok());
  EXPECT_THAT(std::string(CheckDistillation(config, base).message()), HasSubstr("the model is not distilled"));
}

TEST(CheckDistillationTest, AllWeightsHaveNoAssistant) {
  const ModelDescription distilled = {.default_steps = 9, .base_model = "Z-Image"};
  TrainConfig config;
  config.network.type = NetworkType::kFull;
  EXPECT_EQ(CheckDistillation(config, distilled).message(),
            "model is distilled to 9 steps, which training undoes; train Z-Image in its place, or consent with "
            "train.break_distillation: true");
  EXPECT_THAT(std::string(ParseTrainConfig("{model: a, output: b, datasets: [{folder_path: c}], network: {type: full}, "
                                           "train: {assistant_adapter: d}}")
                              .status()
                              .message()),
              HasSubstr("train.assistant_adapter is 'd'; only an adapter is trained with one"));
}

}  // namespace
}  // namespace tessera::control
