#include "server/api/unused_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "control/model/model_description.h"
#include "control/parameters/job_parameters.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns a model with classifier-free guidance, like PixArt, Stable Diffusion 3 and HunyuanDiT.
control::ModelDescription Guided() {
  control::ModelDescription model;
  model.default_guidance_scale = 4.5;
  model.default_clean_caption = true;
  model.options = {"prompt_2", "prompt_3", "guidance_rescale", "skip_layers"};
  return model;
}

// Returns a model whose guidance scale is an input, like FLUX.1-dev.
control::ModelDescription TrueCfg() {
  control::ModelDescription model;
  model.default_guidance_scale = 3.5;
  model.options = {"prompt_2", "true_cfg_scale"};
  model.cost.guidance_is_input = true;
  return model;
}

// Returns a model without guidance, like FLUX.1-schnell.
control::ModelDescription Distilled() {
  control::ModelDescription model = TrueCfg();
  model.default_guidance_scale = 0;
  return model;
}

control::JobParameters Job(double guidance, int32_t steps = 20) { return {.steps = steps, .guidance_scale = guidance}; }

// Drops the unused parameters of the job and returns the messages. A second call must not return any.
std::vector<std::string> Said(control::JobParameters& job, const control::ModelDescription& model) {
  std::vector<std::string> said = DropUnusedParameters(job, model);
  EXPECT_THAT(DropUnusedParameters(job, model), IsEmpty());
  return said;
}

TEST(UnusedParametersTest, NothingIsSaidOfDefaultsAndOfWhatWorks) {
  for (const control::ModelDescription& model : {Guided(), TrueCfg(), Distilled()}) {
    control::JobParameters job = Job(model.default_guidance_scale);
    EXPECT_THAT(Said(job, model), IsEmpty());
  }
  control::JobParameters job = Job(4);
  job.negative_prompt = "leaf";
  job.clean_caption = true;
  job.options = {.negative_prompt_2 = "b", .guidance_rescale = 0.5, .skip_layers = {.layers = {1}}};
  const control::PromptOptions options = job.options;
  EXPECT_THAT(Said(job, Guided()), IsEmpty());
  EXPECT_EQ(job.negative_prompt, "leaf");
  EXPECT_EQ(job.options, options);
}

TEST(UnusedParametersTest, AModelWithoutGuidanceScaleTakesNone) {
  control::JobParameters job = Job(7.5);
  EXPECT_THAT(Said(job, Distilled()), ElementsAre("guidance 7.5 is not used: this model takes no guidance scale"));
  EXPECT_EQ(job.guidance_scale, 0);
  EXPECT_FALSE(TakesGuidance(Distilled()));
  EXPECT_TRUE(TakesGuidance(TrueCfg()));
}

TEST(UnusedParametersTest, WithoutGuidanceNegativePromptsAndRescaleAreNotUsed) {
  for (const double guidance : {0.0, 0.5, 1.0}) {
    control::JobParameters job = Job(guidance);
    job.negative_prompt = "leaf";
    job.options = {.negative_prompt_2 = "b", .negative_prompt_3 = "c", .guidance_rescale = 0.5};
    EXPECT_THAT(Said(job, Guided()), ElementsAre("the negative prompt is not used: it needs a guidance above 1",
                                                 "the second negative prompt is not used: it needs a guidance above 1",
                                                 "the third negative prompt is not used: it needs a guidance above 1",
                                                 "guidance rescale 0.5 is not used: it needs a guidance above 1"));
    EXPECT_EQ(job.negative_prompt, std::nullopt);
    EXPECT_EQ(job.options, control::PromptOptions());
  }
  // Programs send an empty negative prompt with every request. The model uses an empty one anyway, so there is no
  // message.
  control::JobParameters job = Job(1);
  job.negative_prompt = "";
  EXPECT_THAT(Said(job, Guided()), IsEmpty());
}

TEST(UnusedParametersTest, TrueGuidanceAndANegativePromptNeedEachOther) {
  control::JobParameters job = Job(3.5);
  job.options.true_cfg_scale = 4;
  EXPECT_THAT(Said(job, TrueCfg()),
              ElementsAre("true CFG scale 4 is not used: it needs a negative prompt, which may be empty"));
  EXPECT_EQ(job.options.true_cfg_scale, 1);

  for (const double scale : {1.0, 0.25}) {
    job = Job(3.5);
    job.negative_prompt = "";
    job.options.true_cfg_scale = scale;
    job.options.negative_prompt_2 = "b";
    std::vector<std::string> said = Said(job, TrueCfg());
    if (scale < 1) {
      EXPECT_EQ(said.at(0), "true CFG scale 0.25 is not used: it begins above 1");
      said.erase(said.begin());
    }
    EXPECT_THAT(said, ElementsAre("the negative prompt is not used: it needs a true CFG scale above 1",
                                  "the second negative prompt is not used: it needs a true CFG scale above 1"));
    EXPECT_EQ(job.negative_prompt, std::nullopt);
  }

  job = Job(3.5);
  job.negative_prompt = "";
  job.options.true_cfg_scale = 4;
  EXPECT_THAT(Said(job, TrueCfg()), IsEmpty());
}

TEST(UnusedParametersTest, SkipLayersThatWorkInNoStepAreNotUsed) {
  struct Case {
    double guidance;
    int32_t steps;
    control::SkipLayerGuidance skip;
    const char* why;  // null: the layers are used
  };
  for (const auto& [guidance, steps, skip, why] : {
           Case{7, 28, {.layers = {7}}, nullptr},
           Case{1, 28, {.layers = {7}}, "it needs a guidance above 1"},
           Case{7, 28, {.layers = {7}, .scale = 0}, "its scale is 0"},
           // Step i of n is inside if n * start < i < n * stop. Steps count from 0.
           Case{7, 28, {.layers = {7}, .start = 0.5, .stop = 0.5}, "none of the 28 steps lies between its start 0.5"},
           Case{7, 5, {.layers = {7}, .start = 0.01, .stop = 0.2}, "none of the 5 steps"},
           Case{7, 6, {.layers = {7}, .start = 0.01, .stop = 0.2}, nullptr},
           Case{7, 1, {.layers = {7}, .start = 0, .stop = 1}, "none of the 1 step lies"},
           Case{7, 2, {.layers = {7}, .start = 0, .stop = 1}, nullptr},
       }) {
    control::JobParameters job = Job(guidance, steps);
    job.options.skip_layers = skip;
    const std::vector<std::string> said = Said(job, Guided());
    if (why == nullptr) {
      EXPECT_THAT(said, IsEmpty());
      EXPECT_EQ(job.options.skip_layers, skip);
    } else {
      EXPECT_THAT(said, ElementsAre(AllOf(HasSubstr("skip-layer guidance is not used: "), HasSubstr(why))));
      EXPECT_EQ(job.options.skip_layers, control::SkipLayerGuidance());
    }
  }
}

TEST(UnusedParametersTest, AModelThatCleansNoCaptionsSaysSo) {
  control::JobParameters job = Job(3.5);
  job.clean_caption = true;
  EXPECT_THAT(Said(job, TrueCfg()), ElementsAre("caption cleaning is not used: this model has none"));
  EXPECT_FALSE(job.clean_caption);
}

}  // namespace
}  // namespace tessera::server
